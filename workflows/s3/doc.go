// Package s3 is a store of durable runs in a bucket of an S3-compatible service,
// for workers and clients that share no folder. It is a [workflows.Store], used like
// the folder of [workflows.OpenDir].
package s3
