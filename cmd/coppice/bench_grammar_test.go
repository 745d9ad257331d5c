package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLinesOfTheGrammarRunner(t *testing.T) {
	f, err := readPeer(strings.NewReader(`{"id":"a","compile_cpu_us":100,"ttfm_cpu_us":150,"mask_us":[1,2,3],"commit_us":[1],"tests":[{"valid":true,"acc":true,"eos":true},{"valid":false,"acc":false}]}
{"id":"b","compile_cpu_us":300,"ttfm_cpu_us":350,"mask_us":[9],"commit_us":[2],"tests":[{"valid":false,"acc":true,"eos":true}]}
{"id":"c","compile_cpu_us":10,"error":"no","tests":[]}
{"id":"d","compile_cpu_us":10,"ttfm_cpu_us":20,"mask_us":[],"commit_us":[],"tests":[{"valid":true,"acc":true,"eos":false}]}
`))
	require.NoError(t, err)
	require.Equal(t, []int{4, 1, 1, 1}, []int{f.schemas, f.right, f.wrong, f.refused})
	require.Equal(t, 300.0, f.compile.Max)
	require.Equal(t, 9.0, f.mask.Max)
	require.Equal(t, 4, f.mask.N)
	_, err = readPeer(strings.NewReader("{"))
	require.Error(t, err)
}
