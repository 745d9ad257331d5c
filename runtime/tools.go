package runtime

import (
	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/lang"
)

// ToolFormat returns the form in which a backend's model writes tool calls, as
// its chat template has it, and Hermes where that is not known.
func ToolFormat(be backend.Backend) lang.ToolFormat {
	if f := be.Info().ToolFormat; f != "" {
		return lang.ToolFormat(f)
	}
	return lang.Hermes
}
