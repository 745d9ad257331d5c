package lang

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestInputsComeBackWithTheirTypes(t *testing.T) {
	g, err := Decode([]byte("coppice: 1\nname: p\ninputs: {n: int, s: string, l: '[]int', unset: string}\nsteps:\n  - system: ${s}\n"), "p.yaml")
	require.NoError(t, err)
	vars := map[string]any{"n": int64(1) << 60, "s": "a\"b", "l": []any{int64(1), int64(2)}}
	data := g.EncodeInputs(vars)
	require.Equal(t, `{"n":1152921504606846976,"s":"a\"b","l":[1,2]}`, string(data))
	got, err := g.DecodeInputs(data)
	require.NoError(t, err)
	require.Equal(t, string(data), string(g.EncodeInputs(got)))

	for in, want := range map[string]string{"[]": "not an object", "{": "inputs: ", `{"n":"x"}`: `input "n": `} {
		_, err := g.DecodeInputs([]byte(in))
		require.ErrorContains(t, err, want)
	}
	got, err = g.DecodeInputs([]byte(`{"other":1}`))
	require.NoError(t, err)
	require.Empty(t, got)
	require.True(t, strings.HasPrefix(string(g.EncodeInputs(nil)), "{}"))
}
