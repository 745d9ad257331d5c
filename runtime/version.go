package runtime

import "runtime/debug"

// Version returns the version of this module in the running program, "unknown"
// where the build does not say.
func Version() string {
	const path = "github.com/coppice-run/coppice"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if info.Main.Path == path {
		return info.Main.Version
	}
	for _, d := range info.Deps {
		if d.Path == path {
			return d.Version
		}
	}
	return "unknown"
}
