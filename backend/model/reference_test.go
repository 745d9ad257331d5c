package model

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/coppice-run/coppice/backend/gguf"
)

// reference computes all logits of a sequence in float64, one token and one
// element after the other, straight from the papers' formulas. It shares no
// code with the package but the names of the tensors.
func reference(f *gguf.File, s tinySpec, tokens []int32) [][]float64 {
	dot := func(w []float64, row int, x []float64) float64 {
		sum := 0.0
		for i, v := range x {
			sum += w[row*len(x)+i] * v
		}
		return sum
	}
	matvec := func(name string, x []float64) []float64 {
		w := floats(f, name)
		y := make([]float64, len(w)/len(x))
		for i := range y {
			y[i] = dot(w, i, x)
		}
		if b := floats(f, name[:len(name)-len("weight")]+"bias"); b != nil {
			for i := range y {
				y[i] += b[i]
			}
		}
		return y
	}
	rms := func(x []float64, name string) []float64 {
		w := floats(f, name)
		sum := 0.0
		for _, v := range x {
			sum += v * v
		}
		y := make([]float64, len(x))
		for i, v := range x {
			y[i] = v / math.Sqrt(sum/float64(len(x))+1e-5) * w[i]
		}
		return y
	}
	rot := func(x []float64, pos int, base float64, div []float64) {
		n := len(x) / 2
		for i := range n {
			a := float64(pos) * math.Pow(base, -float64(i)/float64(n))
			if div != nil {
				a /= div[i]
			}
			p, q := 2*i, 2*i+1
			if s.arch != "llama" {
				p, q = i, i+n
			}
			u, v := x[p], x[q]
			x[p] = u*math.Cos(a) - v*math.Sin(a)
			x[q] = u*math.Sin(a) + v*math.Cos(a)
		}
	}
	gemma := s.arch == "gemma3"
	embed := floats(f, "token_embd.weight")
	keys := make([][][]float64, s.layers) // [layer][pos]
	values := make([][][]float64, s.layers)
	var out [][]float64
	for pos, tok := range tokens {
		x := append([]float64(nil), embed[int(tok)*s.dim:][:s.dim]...)
		if gemma {
			for i := range x {
				x[i] *= math.Sqrt(float64(s.dim))
			}
		}
		for l := range s.layers {
			name := func(n string) string { return fmt.Sprintf("blk.%d.%s.weight", l, n) }
			h := rms(x, name("attn_norm"))
			q, k, v := matvec(name("attn_q"), h), matvec(name("attn_k"), h), matvec(name("attn_v"), h)
			local := gemma && (l+1)%6 != 0
			base, div := 50000.0, floats(f, "rope_freqs.weight")
			if local {
				base, div = 10000, nil
			}
			for hd := range s.heads {
				head := q[hd*s.headDim:][:s.headDim]
				if floats(f, name("attn_q_norm")) != nil {
					copy(head, rms(head, name("attn_q_norm")))
				}
				rot(head, pos, base, div)
			}
			for hd := range s.kvHeads {
				head := k[hd*s.headDim:][:s.headDim]
				if floats(f, name("attn_k_norm")) != nil {
					copy(head, rms(head, name("attn_k_norm")))
				}
				rot(head, pos, base, div)
			}
			keys[l], values[l] = append(keys[l], k), append(values[l], v)
			att := make([]float64, s.heads*s.headDim)
			for hd := range s.heads {
				g := hd / (s.heads / s.kvHeads) * s.headDim
				first := 0
				if local {
					first = max(0, pos-s.window+1)
				}
				sum := 0.0
				for p := first; p <= pos; p++ {
					score := 0.0
					for i := range s.headDim {
						score += q[hd*s.headDim+i] * keys[l][p][g+i]
					}
					w := math.Exp(score / math.Sqrt(float64(s.headDim)))
					sum += w
					for i := range s.headDim {
						att[hd*s.headDim+i] += w * values[l][p][g+i]
					}
				}
				for i := range s.headDim {
					att[hd*s.headDim+i] /= sum
				}
			}
			y := matvec(name("attn_output"), att)
			if gemma {
				y = rms(y, name("post_attention_norm"))
			}
			for i := range x {
				x[i] += y[i]
			}
			h = rms(x, name("ffn_norm"))
			gate, up := matvec(name("ffn_gate"), h), matvec(name("ffn_up"), h)
			for i, g := range gate {
				if gemma {
					g = 0.5 * g * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(g+0.044715*g*g*g)))
				} else {
					g /= 1 + math.Exp(-g)
				}
				gate[i] = g * up[i]
			}
			y = matvec(name("ffn_down"), gate)
			if gemma {
				y = rms(y, name("post_ffw_norm"))
			}
			for i := range x {
				x[i] += y[i]
			}
		}
		head := "output.weight"
		if s.tied {
			head = "token_embd.weight"
		}
		out = append(out, matvec(head, rms(x, "output_norm.weight")))
	}
	return out
}

// distance is the root mean square difference relative to that of want.
func distance(got [][]float32, want [][]float64) float64 {
	diff, norm := 0.0, 0.0
	for i := range want {
		for j, w := range want[i] {
			d := float64(got[i][j]) - w
			diff += d * d
			norm += w * w
		}
	}
	return math.Sqrt(diff / norm)
}

func randTokens(r *rand.Rand, n, vocab int) []int32 {
	v := make([]int32, n)
	for i := range v {
		v[i] = r.Int32N(int32(vocab))
	}
	return v
}

// allLogits computes the logits of every position in one step.
func allLogits(t testing.TB, m *Model, tokens []int32) [][]float32 {
	t.Helper()
	pages := (len(tokens) + PageSize - 1) / PageSize
	kv, err := m.NewKV(pages)
	if err != nil {
		t.Fatal(err)
	}
	defer kv.Close()
	row := Row{Tokens: tokens}
	for p := range pages {
		row.Pages = append(row.Pages, int32(p))
	}
	out := make([][]float32, len(tokens))
	for i := range tokens {
		row.Outputs = append(row.Outputs, i)
		out[i] = make([]float32, m.cfg.Vocab)
	}
	if err := m.Forward(kv, &Batch{Rows: []Row{row}}, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestAgainstReference compares with float64 arithmetic. Attention takes its
// operands as bfloat16 or as 8-bit integers, and with quantised weights activations
// have 8 bits, which is what the bounds allow for.
func TestAgainstReference(t *testing.T) {
	specs := tinySpecs()
	scaled := specs["llama"]
	scaled.ropeFreqs = true
	specs["llama3 rope"] = scaled
	for name, s := range specs {
		for _, v := range []struct {
			name  string
			spec  tinySpec
			bound map[KVType]float64
		}{{"float", s, map[KVType]float64{BFloat16: 1e-2, Int8: 2e-2}}, {"quantised", s.quantised(), map[KVType]float64{BFloat16: 3e-2}}} {
			t.Run(name+"/"+v.name, func(t *testing.T) {
				f := v.spec.open(t, 7)
				n := 90
				if s.layers == 2 {
					n = 300 // more than a span
				}
				tokens := randTokens(rand.New(rand.NewPCG(3, 3)), n, s.vocab)
				want := reference(f, v.spec, tokens)
				for kind, bound := range v.bound {
					m, err := Load(f, Options{Threads: 2, KV: kind})
					if err != nil {
						t.Fatal(err)
					}
					rel := distance(allLogits(t, m, tokens), want)
					m.Close()
					t.Logf("%s: relative RMS of all logits %.2g", kind, rel)
					if !(rel < bound) {
						t.Errorf("%s: logits differ by %.3g relative RMS, want below %g", kind, rel, bound)
					}
				}
			})
		}
	}
}
