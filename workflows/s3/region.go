package s3

import "os"

// region is the one that is named, or that of the environment.
func region(name string) string {
	for _, r := range []string{name, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION")} {
		if r != "" {
			return r
		}
	}
	return "us-east-1"
}
