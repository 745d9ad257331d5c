package model

import (
	"fmt"
	"math"
	"runtime"
	"strings"

	"github.com/coppice-run/coppice/backend/compute"
	"github.com/coppice-run/coppice/backend/gguf"
)

// Load makes a model of the file. The weights are packed into memory of the
// model's own; f may be closed afterwards.
//
// An architecture that is not supported gives an error that matches
// ErrUnknownFamily. A tensor that is missing, has another shape than the
// metadata ask for, or has a type that is not supported is named in the error.
func Load(f *gguf.File, o Options) (*Model, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	cfg, fam, err := readConfig(f)
	if err != nil {
		return nil, err
	}
	threads := o.Threads
	if threads == 0 {
		threads = runtime.NumCPU()
	}
	m := &Model{
		cfg: cfg, fam: fam, reference: o.Float32Attention, kvType: o.KV, arithmetic: o.Arithmetic,
		pool: compute.NewPool(min(threads, maxThreads)),
	}
	m.scale = m.attentionScale()
	m.softcap = float32(float64(cfg.AttnSoftcap) * math.Log2E)
	if err := m.load(f, o); err != nil {
		m.Close()
		return nil, err
	}
	m.ws = newWorkspace(m)
	return m, nil
}

// maxThreads bounds a careless option.
const maxThreads = 1024

// A loader collects the tensors of a model; the first error sticks. Matrices
// are packed at the end, when the sum of their sizes is known, into one piece
// of memory.
type loader struct {
	f     *gguf.File
	err   error
	used  map[string]bool // tensors that something asked for
	jobs  []packJob
	size  int
	exact bool // see Options.Float32Weights
	plain bool // see GGML
}

type packJob struct {
	t          gguf.Tensor
	kind       compute.Kind
	rows, cols int
	dst        *matrix
}

func (m *Model) load(f *gguf.File, o Options) error {
	c := &m.cfg
	l := &loader{f: f, used: map[string]bool{}, exact: o.Float32Weights, plain: o.Arithmetic == GGML}
	embed, ok := f.Tensor("token_embd.weight")
	if !ok {
		return fmt.Errorf("model: tensor token_embd.weight is missing")
	}
	if len(embed.Shape) != 2 || embed.Shape[0] != c.Dim || embed.Shape[1] < 1 || embed.Shape[1] > 1<<24 {
		return fmt.Errorf("model: tensor token_embd.weight has shape %v, want [%d vocabulary]", embed.Shape, c.Dim)
	}
	c.Vocab = embed.Shape[1]
	l.matrix(&m.embed, "token_embd.weight", c.Vocab, c.Dim)
	if _, own := f.Tensor("output.weight"); own {
		l.matrix(&m.output, "output.weight", c.Vocab, c.Dim)
	}
	m.norm = l.vector("output_norm.weight", c.Dim)

	// A block has at least the seven matrices below, so a count that the file
	// cannot hold is refused before memory is spent on it.
	if c.Layers > len(f.Tensors()) {
		return fmt.Errorf("model: %d layers, but the file has %d tensors in all", c.Layers, len(f.Tensors()))
	}
	m.layers = make([]layer, c.Layers)
	for i := range m.layers {
		l.layer(&m.layers[i], m, i)
	}
	if err := m.setRope(l); err != nil {
		return err
	}
	if l.plain {
		if err := m.setPlain(l); err != nil {
			return err
		}
	}
	if l.err != nil {
		return l.err
	}
	if err := l.allUsed(c.Arch); err != nil {
		return err
	}
	for i := range m.layers {
		if !l.plain {
			m.layers[i].kCentre = m.keyCentre(&m.layers[i])
		}
	}
	if err := m.pack(l); err != nil {
		return err
	}
	if m.output == nil {
		m.output = m.embed
	}
	for _, j := range l.jobs {
		switch {
		case strings.HasSuffix(j.t.Name, "_exps.weight"):
			m.storedExperts += len(j.t.Data)
		case j.dst != &m.embed || m.output == m.embed:
			m.stored += len(j.t.Data)
		}
	}
	return nil
}

func (l *loader) layer(dst *layer, m *Model, i int) {
	c := &m.cfg
	name := func(s string) string { return fmt.Sprintf("blk.%d.%s", i, s) }
	qd, kd := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	dst.local = c.local(i, &m.fam)
	dst.still = m.fam.still > 0 && (i+1)%m.fam.still == 0
	dst.attnNorm = l.vector(name("attn_norm.weight"), c.Dim)
	dst.ffnNorm = l.vector(name("ffn_norm.weight"), c.Dim)
	if m.fam.fused {
		l.parts(name("attn_qkv.weight"), c.Dim, part{&dst.q, qd}, part{&dst.k, kd}, part{&dst.v, kd})
	} else {
		l.matrix(&dst.q, name("attn_q.weight"), qd, c.Dim)
		l.matrix(&dst.k, name("attn_k.weight"), kd, c.Dim)
		l.matrix(&dst.v, name("attn_v.weight"), kd, c.Dim)
	}
	l.matrix(&dst.o, name("attn_output.weight"), c.Dim, qd)
	switch {
	case c.Experts > 0:
		l.matrix(&dst.router, name("ffn_gate_inp.weight"), c.Experts, c.Dim)
		dst.experts = make([]expert, c.Experts)
		l.stack(name("ffn_gate_exps.weight"), c.FFN, c.Dim, func(e int) *matrix { return &dst.experts[e].gate }, c.Experts)
		l.stack(name("ffn_up_exps.weight"), c.FFN, c.Dim, func(e int) *matrix { return &dst.experts[e].up }, c.Experts)
		l.stack(name("ffn_down_exps.weight"), c.Dim, c.FFN, func(e int) *matrix { return &dst.experts[e].down }, c.Experts)
	case m.fam.fused:
		l.parts(name("ffn_up.weight"), c.Dim, part{&dst.gate, c.FFN}, part{&dst.up, c.FFN})
		l.matrix(&dst.down, name("ffn_down.weight"), c.Dim, c.FFN)
	default:
		l.matrix(&dst.gate, name("ffn_gate.weight"), c.FFN, c.Dim)
		l.matrix(&dst.up, name("ffn_up.weight"), c.FFN, c.Dim)
		l.matrix(&dst.down, name("ffn_down.weight"), c.Dim, c.FFN)
	}
	if m.fam.bias {
		dst.qBias = l.vector(name("attn_q.bias"), qd)
		dst.kBias = l.vector(name("attn_k.bias"), kd)
		dst.vBias = l.vector(name("attn_v.bias"), kd)
	}
	if m.fam.qkNorm {
		dst.qNorm = l.vector(name("attn_q_norm.weight"), c.HeadDim)
		dst.kNorm = l.vector(name("attn_k_norm.weight"), c.HeadDim)
	}
	if m.fam.postNorm {
		dst.attnPostNorm = l.vector(name("post_attention_norm.weight"), c.Dim)
		dst.ffnPostNorm = l.vector(name("post_ffw_norm.weight"), c.Dim)
	}
}

// tensor finds a tensor and checks its shape, in GGUF order.
func (l *loader) tensor(name string, shape ...int) (gguf.Tensor, bool) {
	if l.err != nil {
		return gguf.Tensor{}, false
	}
	t, ok := l.f.Tensor(name)
	if !ok {
		l.err = fmt.Errorf("model: tensor %s is missing", name)
		return t, false
	}
	l.used[name] = true
	got := t.Shape
	for len(got) > len(shape) && got[len(got)-1] == 1 {
		got = got[:len(got)-1]
	}
	same := len(got) == len(shape)
	for i := 0; same && i < len(shape); i++ {
		same = got[i] == shape[i]
	}
	if !same {
		l.err = fmt.Errorf("model: tensor %s has shape %v, want %v", name, t.Shape, shape)
	}
	return t, same
}

// allUsed refuses a file with tensors that nothing reads, such as biases in a family
// that has none: what it would compute is not what the model says. Factors of longrope
// come in two sets, of which one is used; v. and mm. are what other programs put beside
// the language model, to see with.
func (l *loader) allUsed(arch string) error {
	for _, t := range l.f.Tensors() {
		known := l.used[t.Name] || strings.HasPrefix(t.Name, "v.") || strings.HasPrefix(t.Name, "mm.") ||
			t.Name == ropeFactorsLong || t.Name == ropeFactorsShort
		if !known {
			return fmt.Errorf("model: tensor %s is not one of family %s as it is known here, and would be left out: take another file of the model, or a server that runs it, by --backend URL", t.Name, arch)
		}
	}
	return nil
}

// vector reads a small tensor as float32.
func (l *loader) vector(name string, n int) []float32 {
	t, ok := l.tensor(name, n)
	if !ok {
		return nil
	}
	v := make([]float32, n)
	if err := gguf.Dequantize(t.Type, t.Data, v); err != nil {
		l.err = fmt.Errorf("model: tensor %s: %w", name, err)
		return nil
	}
	return v
}

// matrix asks for a tensor to be packed into *dst.
func (l *loader) matrix(dst *matrix, name string, rows, cols int) {
	if t, ok := l.tensor(name, cols, rows); ok {
		l.add(dst, t, rows, cols)
	}
}

// part is some rows of a tensor that holds several matrices.
type part struct {
	dst  *matrix
	rows int
}

// parts asks for the matrices that follow each other in a tensor.
func (l *loader) parts(name string, cols int, parts ...part) {
	rows := 0
	for _, p := range parts {
		rows += p.rows
	}
	if t, ok := l.tensor(name, cols, rows); ok {
		l.cut(t, cols, parts)
	}
}

// stack asks for n matrices that lie in one tensor of three dimensions.
func (l *loader) stack(name string, rows, cols int, dst func(i int) *matrix, n int) {
	t, ok := l.tensor(name, cols, rows, n)
	if !ok {
		return
	}
	parts := make([]part, n)
	for i := range parts {
		parts[i] = part{dst(i), rows}
	}
	l.cut(t, cols, parts)
}

// cut adds the parts of a tensor.
func (l *loader) cut(t gguf.Tensor, cols int, parts []part) {
	row := t.Type.RowBytes(cols)
	for _, p := range parts {
		if n := p.rows * row; n > len(t.Data) {
			l.err = fmt.Errorf("model: tensor %s has too few bytes for its shape %v as %v", t.Name, t.Shape, t.Type)
			return
		}
		one := t
		one.Data, t.Data = t.Data[:p.rows*row], t.Data[p.rows*row:]
		l.add(p.dst, one, p.rows, cols)
	}
}

// add asks for rows to be packed into *dst.
func (l *loader) add(dst *matrix, t gguf.Tensor, rows, cols int) {
	if l.err != nil {
		return
	}
	kind, ok := kindOf(t.Type)
	if !ok { // what has no kind is not decoded either: TestUnreadableTypes
		l.err = fmt.Errorf("model: tensor %s: %w", t.Name, gguf.Dequantize(t.Type, nil, nil))
		return
	}
	if l.exact {
		kind = compute.Float32
	}
	if cols%t.Type.BlockSize() != 0 || len(t.Data) != t.Type.RowBytes(rows*cols) {
		l.err = fmt.Errorf("model: tensor %s has %d bytes, which do not hold %d rows of %d values as %v", t.Name, len(t.Data), rows, cols, t.Type)
		return
	}
	l.jobs = append(l.jobs, packJob{t: t, kind: kind, rows: rows, cols: cols, dst: dst})
	l.size += l.bytes(&l.jobs[len(l.jobs)-1])
}

// bytes returns the memory that the matrix of a job takes.
func (l *loader) bytes(j *packJob) int {
	if l.plain {
		return (len(j.t.Data) + 63) &^ 63
	}
	return compute.MatrixBytes(j.kind, j.rows, j.cols)
}

// pack converts all matrices, with all threads.
func (m *Model) pack(l *loader) error {
	mem, err := compute.NewMemory(l.size)
	if err != nil {
		return fmt.Errorf("model: memory for %d bytes of weights: %w", l.size, err)
	}
	m.mem = append(m.mem, mem)
	buf := mem.Bytes()
	for i := range l.jobs {
		j := &l.jobs[i]
		n := l.bytes(j)
		if l.plain {
			if err := packPlain(j, buf[:len(j.t.Data)]); err != nil {
				return err
			}
			buf = buf[n:]
			continue
		}
		mat := compute.NewMatrix(j.kind, j.rows, j.cols, buf[:n:n])
		if mat.Form != compute.Floats && j.t.Type.BlockSize() > compute.BlockCols {
			mat.Form = compute.Wide // as llama.cpp does for the types with blocks of 256
		}
		*j.dst, buf = mat, buf[n:]
		// A task is a run of whole panels, which no other task writes.
		const rows = 4 * compute.PanelRows
		m.pool.Run((j.rows+rows-1)/rows, func(_, task int) {
			j.rowsInto(mat, task*rows, min(j.rows, (task+1)*rows))
		})
	}
	return nil
}

// rowsInto packs rows r0 up to r1.
func (j *packJob) rowsInto(mat *compute.Matrix, r0, r1 int) {
	size := j.t.Type.RowBytes(j.cols)
	var floats []float32
	var blocks []compute.Block
	if mat.Kind <= compute.Float16 {
		floats = make([]float32, j.cols)
	} else {
		blocks = make([]compute.Block, j.cols/compute.BlockCols)
	}
	for r := r0; r < r1; r++ {
		src := j.t.Data[r*size:][:size]
		if floats != nil {
			// The sizes were checked and the type is one of kindOf's.
			_ = gguf.Dequantize(j.t.Type, src, floats)
			mat.SetFloats(r, floats)
		} else {
			decodeBlocks(blocks, j.t.Type, src)
			mat.SetBlocks(r, blocks)
		}
	}
}
