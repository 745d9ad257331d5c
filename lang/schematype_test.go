package lang_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWholeNumbersOfShortTypesHave64Bits: a model that is held to the schema of int
// writes nothing that is no int.
func TestWholeNumbersOfShortTypesHave64Bits(t *testing.T) {
	g := decode(t, "steps:\n  - user: hi\n  - json: {name: n, type: \"{a: int, b: []int}\"}\n  - return: n\n")
	const whole = `{"type":"integer","maximum":9223372036854775807,"minimum":-9223372036854775808}`
	require.Contains(t, string(g.Node("n").JSON.Schema), `"a":`+whole)
	require.Contains(t, string(g.Node("n").JSON.Schema), `"items":`+whole)
}
