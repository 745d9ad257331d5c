// Package devserver starts a Temporal server on this machine, for who has none:
// the program coppice-temporal, which `make temporal` builds, over an SQLite
// file in a folder. One server serves all processes that name that folder, and
// what it holds outlives them all.
package devserver
