package compute

import "unsafe"

// tileArgs fills in what a tile of x contributes to the operands.
func (m *Matrix) tileArgs(a *gemmArgs, x *Acts, first int) {
	if !m.Kind.quantised() {
		a.xf = &x.f[first*x.cols]
		return
	}
	meta, q := first*x.nb, &x.quants[m.Form]
	a.x = &q.q[meta*BlockCols]
	a.sx, a.xs, a.init = &q.sx[meta], &q.xs[meta], &q.init[meta]
	if m.Kind == Int8Half {
		a.init = &q.init2[2*meta]
	}
}

// panelArgs fills in what panel p contributes to the operands.
func (m *Matrix) panelArgs(a *gemmArgs, p int) {
	switch m.Kind {
	case Float32:
		a.w, a.n = (*byte)(unsafe.Pointer(&m.f[p*m.Cols*PanelRows])), m.Cols
	case Float16:
		a.w, a.n = (*byte)(unsafe.Pointer(&m.h[p*m.Cols*PanelRows])), m.Cols
	default:
		a.w, a.n = &m.q[p*m.nb*m.Kind.blockBytes()], m.nb
		s := p * m.nb * m.Kind.scalesPerBlock() * PanelRows
		a.d = &m.d[s]
		if m.m != nil {
			a.m = &m.m[s]
		}
	}
}

// Mul computes the panels p0 up to p1 of y = x times m transposed: y[i*stride+r]
// is the product of token i with row r. Rows beyond m.Rows in the last panel
// are written as zeros, so stride and y have room for 16*Panels.
func (m *Matrix) Mul(y []float32, stride int, x *Acts, p0, p1 int) {
	a := gemmArgs{stride: stride, panels: 1}
	if x.n == 0 {
		return
	}
	if x.n <= runTokens() {
		m.tileArgs(&a, x, 0)
		for per := m.panelsPerCall(); p0 < p1; p0 += per {
			m.panelArgs(&a, p0)
			a.y, a.panels = &y[p0*PanelRows], min(per, p1-p0)
			gemm(m.Kind, &a, x.n)
		}
		return
	}
	var room []byte
	if x.n > TileTokens && unpacks(m.Kind) {
		// Several tiles read each panel: it is unpacked once for all.
		room = x.borrow()[:PanelRows*BlockCols*m.nb]
		defer x.giveBack(room)
	}
	for p := p0; p < p1; p++ {
		m.panelArgs(&a, p)
		if room != nil {
			unpack(m.Kind, &room[0], a.w, a.n)
			a.w = &room[0]
		}
		for first := 0; first < x.n; first += TileTokens {
			m.tileArgs(&a, x, first)
			a.y = &y[first*stride+p*PanelRows]
			if t := min(TileTokens, x.n-first); room != nil {
				gemmUnpacked(m.Kind, &a, t)
			} else {
				gemm(m.Kind, &a, t)
			}
		}
	}
}

// callBytes bounds the weights that a call of a kernel reads: it cannot be stopped
// for garbage collection, and a call over a whole task of a large output matrix
// would take a millisecond.
const callBytes = 512 << 10

// panelsPerCall is how many panels are that large, at least one.
func (m *Matrix) panelsPerCall() int {
	return max(1, callBytes*m.panels/max(1, m.Bytes()))
}

// MulTo is Mul with a destination for each token, of length m.Rows or more.
func (m *Matrix) MulTo(y [][]float32, x *Acts, p0, p1 int) {
	if whole := min(p1, m.Rows/PanelRows); x.n == 1 && p0 < whole {
		m.Mul(y[0], 0, x, p0, whole)
		p0 = whole
	}
	var tmp [TileTokens * PanelRows]float32
	a := gemmArgs{stride: PanelRows, y: &tmp[0], panels: 1}
	for p := p0; p < p1; p++ {
		m.panelArgs(&a, p)
		for first := 0; first < x.n; first += TileTokens {
			m.tileArgs(&a, x, first)
			t := min(TileTokens, x.n-first)
			gemm(m.Kind, &a, t)
			for i := range t {
				r := p * PanelRows
				copy(y[first+i][r:min(r+PanelRows, m.Rows)], tmp[i*PanelRows:])
			}
		}
	}
}
