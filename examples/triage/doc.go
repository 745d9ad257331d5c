// Package triage is an on-call agent as a coppice program: it reads a runbook
// and an alert, looks at the alert from three sides at once, quotes the runbook
// on the kind of failure and its severity, and ends in a typed verdict.
//
// The runbook is about 6,000 tokens of the embedded model. It stands first and
// never changes, so it is computed once; the three looks fork from the same
// context and cost only their own tokens.
package triage
