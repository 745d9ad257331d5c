package backend_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend"
)

func TestCompileStops(t *testing.T) {
	list, err := backend.CompileStops([]string{`\d{3}`, "(?i)done"})
	require.NoError(t, err)
	assert.Len(t, list, 2)
	for _, bad := range [][]string{
		{"("}, {"a*"}, {"^a"}, {"b|(?m:^a)"}, {`\Aa`}, {strings.Repeat("a", 257)}, {"a{1000}"}, {"a{200}", "b{200}"}, make([]string, 33),
	} {
		_, err := backend.CompileStops(bad)
		assert.ErrorIs(t, err, backend.ErrInvalid, "%.20q", bad)
	}
}
