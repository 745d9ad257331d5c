package s3_test

import (
	"context"
	"fmt"

	"github.com/coppice-run/coppice/workflows"
	"github.com/coppice-run/coppice/workflows/s3"
)

// Workers and clients of a run use the same bucket.
func Example() {
	ctx := context.Background()
	bucket, prefix, o, err := s3.Parse("s3://agents/coppice?region=eu-central-1")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(bucket, prefix, o.Region)
	if false { // needs the bucket, and a Temporal server
		store, err := s3.Open(ctx, bucket, prefix, o)
		if err != nil {
			return
		}
		c, err := workflows.Dial(ctx, workflows.DialOptions{Address: "127.0.0.1:7233", Store: store})
		if err != nil {
			return
		}
		defer c.Close()
	}
	// Output: agents coppice eu-central-1
}
