//go:build !amd64 && !arm64

package compute

// Tier names the kernels in use, here always "go".
func Tier() string { return "go" }

func runTokens() int                     { return 0 }
func gemm(kind Kind, a *gemmArgs, t int) { gemmGo(kind, a, t) }
func unpacks(Kind) bool                  { return false }
func unpack(Kind, *byte, *byte, int)     {}
func gemmUnpacked(Kind, *gemmArgs, int)  {}
func quantise(a *Acts, form Form, first, t, at, block int, x []float32) {
	quantiseGo(a, form, first, t, at, block, x)
}
func scores(a *scoreArgs, t int)                { scoresGo(a, t) }
func mix(a *mixArgs, t int)                     { mixGo(a, t) }
func softmax(a *softmaxArgs, t int)             { softmaxTileGo(a, t) }
func foldTile(a *foldArgs, t int)               { foldTileGo(a, t) }
func brainPairs(dst []uint32, v []float32)      { brainPairsGo(dst, v) }
func scores8(a *score8Args, t int)              { scores8Go(a, t) }
func mix8(a *mix8Args, t int)                   { mix8Go(a, t) }
func weigh(a *weighArgs) float32                { return weighGo(a) }
func narrow(s []float32, inv float32, p []byte) { narrowGo(s, inv, p) }
func softmaxPlain(s []float32) (m, sum float32) { return softmaxPlainGo(s) }
func wantsPairs() bool                          { return false }
func norm(dst, x, w []float32, eps float32)     { normGo(dst, x, w, eps) }
func gateUp(dst, gate, up []float32, gelu bool) { gateGo(dst, gate, up, gelu) }
func add(dst, x []float32)                      { addGo(dst, x) }
func blend(dst, x []float32, a, b float32)      { blendGo(dst, x, a, b) }

func hasTop(bool) bool                                   { return false }
func topOf([]float32, []uint64) (m float32, bits uint32) { return 0, 0 }
func find(x []float32, _ float32) int                    { return len(x) }

const softmaxLines = 0

const dotPeakMACs, floatPeakMACs, brainPeakMACs = goPeakMACs, goPeakMACs, 0

func readPeak(b []byte) { readPeakGo(b) }
func dotPeak(n int)     { dotPeakGo(n) }
func floatPeak(n int)   { floatPeakGo(n) }
func brainPeak(int)     {}
