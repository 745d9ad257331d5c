package model

import (
	"fmt"

	"github.com/coppice-run/coppice/backend/compute"
	"github.com/coppice-run/coppice/backend/model/internal/ggml"
)

// An Arithmetic says how numbers are rounded and in which order they are added.
type Arithmetic string

const (
	// Fast is that of package compute, which the engine is made for.
	Fast Arithmetic = "fast"
	// GGML is that of llama.cpp's portable C code, operation by operation, with
	// keys and values in half floats and no flash attention. On the same file the
	// logits are llama.cpp's, bit for bit, if it is built for a processor without
	// vector instructions of its own (libggml-cpu-x64 of its releases); so what
	// differs then is not rounding. It is many times slower.
	//
	// Mixtures of experts and rotary scaling by YaRN or longrope are refused.
	GGML Arithmetic = "ggml"
)

// ParseArithmetic reads the name of an Arithmetic; the empty name is that of Fast.
func ParseArithmetic(name string) (Arithmetic, error) {
	switch a := Arithmetic(name); a {
	case "":
		return Fast, nil
	case Fast, GGML:
		return a, nil
	}
	return "", fmt.Errorf("model: arithmetic %q: known are %s and %s", name, Fast, GGML)
}

// Check tells what the options ask for that does not go together, as [Load] does.
func (o Options) Check() error { return o.check() }

// check tells what the options ask for that does not go together, and fills in
// what they leave open.
func (o *Options) check() error {
	if o.Threads < 0 {
		return fmt.Errorf("model: %d threads: want a number from 1, or 0 for one per core", o.Threads)
	}
	arithmetic, err := ParseArithmetic(string(o.Arithmetic))
	if err != nil {
		return err
	}
	o.Arithmetic = arithmetic
	if o.Arithmetic == GGML {
		switch {
		case o.Float32Attention || o.Float32Weights:
			return fmt.Errorf("model: arithmetic %s and attention or weights in float32: choose one", GGML)
		case o.KV != "" && o.KV != Float16:
			return fmt.Errorf("model: arithmetic %s holds keys and values as %s: leave out %s", GGML, Float16, o.KV)
		}
		o.KV = Float16
		return nil
	}
	if o.KV, err = ParseKVType(string(o.KV)); err != nil {
		return err
	}
	if o.Float32Attention && o.KV != BFloat16 {
		return fmt.Errorf("model: attention in float32 and keys and values as %s: choose one", o.KV)
	}
	return nil
}

// A matrix is a matrix of weights in the form of an arithmetic.
type matrix interface {
	Size() (rows, cols int)
	Panels() int              // a task computes some panels of rows
	Row(dst []float32, r int) // decodes a row
}

// kernels is what differs between the arithmetics in the sections of a step. It
// holds the activations that are to be multiplied next.
type kernels interface {
	// expect declares that activations of n tokens and cols columns follow, and
	// readBy that w will be multiplied with them.
	expect(n, cols int)
	readBy(w matrix)
	// set stores columns of the activations of token i, the first of which is from,
	// a multiple of compute.PartCols; in arithmetic GGML it is 0 and row all of them.
	// row is padded with zeros to whole blocks.
	set(i, from int, row []float32)
	// mul multiplies panels p0 up to p1 of a job.
	mul(worker int, g *gemmJob, p0, p1 int)
	// mulTo is mul with the results of token i in to[i].
	mulTo(worker int, w matrix, to [][]float32, p0, p1 int)

	norm(dst, x, w []float32, eps float32)
	gate(dst, gate, up []float32)
	softcap(x []float32, c float32)
	bytes() int64
}

// fast is the arithmetic of package compute.
type fast struct {
	acts    *compute.Acts
	reads   compute.Forms
	gelu    bool
	threads int
}

func (f *fast) expect(n, cols int)             { f.acts.Reset(n, cols); f.reads = 0 }
func (f *fast) readBy(w matrix)                { f.reads.Add(w.(*compute.Matrix).Form) }
func (f *fast) set(i, from int, row []float32) { f.acts.SetPart(i, from, row, f.reads) }

func (f *fast) mul(_ int, g *gemmJob, p0, p1 int) {
	g.w.(*compute.Matrix).Mul(g.y, g.stride, f.acts, p0, p1)
}

func (f *fast) mulTo(_ int, w matrix, to [][]float32, p0, p1 int) {
	w.(*compute.Matrix).MulTo(to, f.acts, p0, p1)
}

func (f *fast) norm(dst, x, w []float32, eps float32) { compute.Norm(dst, x, w, eps) }
func (f *fast) gate(dst, gate, up []float32)          { compute.Gate(dst, gate, up, f.gelu) }
func (f *fast) softcap(x []float32, c float32)        { compute.Softcap(x, c) }
func (f *fast) bytes() int64                          { return f.acts.Bytes() + int64(f.threads)*f.acts.RoomBytes() }

// plain is the arithmetic of ggml's portable code.
type plain struct {
	acts *ggml.Acts
	gelu bool
}

func (p *plain) expect(n, cols int)          { p.acts.Reset(n, cols) }
func (p *plain) readBy(w matrix)             { p.acts.ReadBy(w.(*ggml.Matrix)) }
func (p *plain) set(i, _ int, row []float32) { p.acts.SetRow(i, row) }

func (p *plain) mul(worker int, g *gemmJob, p0, p1 int) {
	g.w.(*ggml.Matrix).Mul(worker, g.y, g.stride, p.acts, p0, p1)
}

func (p *plain) mulTo(worker int, w matrix, to [][]float32, p0, p1 int) {
	w.(*ggml.Matrix).MulTo(worker, to, p.acts, p0, p1)
}

func (p *plain) norm(dst, x, w []float32, eps float32) { ggml.Norm(dst, x, w, eps) }
func (p *plain) gate(dst, gate, up []float32)          { ggml.Gate(dst, gate, up, p.gelu) }
func (p *plain) softcap(x []float32, c float32)        { ggml.Softcap(x, c) }
func (p *plain) bytes() int64                          { return p.acts.Bytes() }

// newKernels makes those of the model's arithmetic for chunks of tokens and rows
// of columns.
func (m *Model) newKernels(tokens, cols int) kernels {
	threads := m.pool.Threads()
	if m.arithmetic == GGML {
		return &plain{acts: ggml.NewActs(tokens, cols, threads), gelu: m.fam.gelu}
	}
	return &fast{acts: compute.NewActs(tokens, cols), gelu: m.fam.gelu, threads: threads}
}
