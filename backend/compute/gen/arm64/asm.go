package main

import (
	"fmt"
	"math"
	"strings"
)

var text, stubs strings.Builder // the assembly and the Go declarations

// begin starts a kernel: its name, parameters of 8 bytes each (but for float32 at the
// end) and results as Go writes them, and its comment.
func begin(name, params, results, doc string) {
	size := 0
	for _, p := range strings.Split(params, ", ") {
		if p == "" {
			continue
		}
		if strings.HasSuffix(p, "float32") && !strings.HasSuffix(p, "*float32") {
			size += 4
		} else {
			size += 8
		}
	}
	if results != "" {
		size = (size+7)&^7 + resultBytes(results)
		results = " " + results
	}
	fmt.Fprintf(&text, "\n// func %s(%s)%s\nTEXT ·%s(SB), NOSPLIT, $0-%d\n", name, params, results, name, size)
	if params != "" {
		doc += "\n//\n//go:noescape"
	}
	fmt.Fprintf(&stubs, "\n// %s\nfunc %s(%s)%s\n", doc, name, params, results)
	pool = vectors{}
}

// resultBytes is the size of results: float32 and uint32 are all that there is but int.
func resultBytes(results string) int {
	if results == "int" {
		return 8
	}
	return 4 * (1 + strings.Count(results, ","))
}

// op writes an instruction that the Go assembler knows.
func op(format string, args ...any) {
	fmt.Fprintf(&text, "\t"+format+"\n", args...)
}

// label writes a label.
func label(format string, args ...any) { fmt.Fprintf(&text, "\n"+format+":\n", args...) }

// word writes an instruction as a number, and what it means.
func word(code uint32, format string, args ...any) {
	fmt.Fprintf(&text, "\tWORD $0x%08x // %s\n", code, fmt.Sprintf(format, args...))
}

// A gp is a general register.
type gp int

func (r gp) String() string { return fmt.Sprintf("R%d", int(r)) }

// x is the register's name for the GNU assembler.
func (r gp) x() string { return fmt.Sprintf("x%d", int(r)) }

// arg loads the parameter at so many bytes.
func arg(name string, at int, to gp) { op("MOVD %s+%d(FP), %v", name, at, to) }

// field loads a field of the operands that R0 points to.
func field(off int, to gp) { op("MOVD %d(R0), %v", off, to) }

// add adds a constant.
func add(n int, to gp) {
	if n > 0 {
		op("ADD $%d, %v", n, to)
	}
}

// A vec is a vector register.
type vec uint32

func (v vec) String() string { return fmt.Sprintf("v%d", uint32(v)) }

// vectors are those in use.
type vectors [32]bool

var pool vectors

// take returns a vector register that is not in use.
func take() vec {
	for i := range pool {
		if !pool[i] {
			pool[i] = true
			return vec(i)
		}
	}
	panic("no vector register is left in " + text.String()[strings.LastIndex(text.String(), "TEXT"):][:60])
}

// takes returns n registers.
func takes(n int) (v []vec) {
	for range n {
		v = append(v, take())
	}
	return v
}

// free gives registers back.
func free(vs ...vec) {
	for _, v := range vs {
		if !pool[v] {
			panic("freed twice")
		}
		pool[v] = false
	}
}

// A lane is one of the 32-bit parts of a register.
type lane struct {
	v vec
	i uint32
}

// splat makes all 32-bit lanes of a new register a constant. R16 is lost.
func splat(bits uint32) vec {
	v := take()
	op("MOVD $0x%08x, R16", bits)
	word(0x4e040c00|16<<5|uint32(v), "dup %v.4s, w16", v)
	return v
}

// table makes a new register of two constants. R16 is lost.
func table(low, high uint64) vec {
	v := take()
	op("MOVD $0x%016x, R16", low)
	word(0x9e670000|16<<5|uint32(v), "fmov d%d, x16", uint32(v))
	op("MOVD $0x%016x, R16", high)
	word(0x4e181c00|16<<5|uint32(v), "mov %v.d[1], x16", v)
	return v
}

// memory writes a load or store with an offset, a multiple of its size.
func memory(code uint32, name, kind string, size int, v vec, base gp, off int) {
	if off%size != 0 || off < 0 || off/size > 4095 {
		panic(fmt.Sprint("offset ", off))
	}
	word(code|uint32(off/size)<<10|uint32(base)<<5|uint32(v), "%s %s%d, [%s, #%d]", name, kind, uint32(v), base.x(), off)
}

func ldrQ(v vec, base gp, off int) { memory(0x3dc00000, "ldr", "q", 16, v, base, off) }
func ldrD(v vec, base gp, off int) { memory(0xfd400000, "ldr", "d", 8, v, base, off) }
func ldrS(v vec, base gp, off int) { memory(0xbd400000, "ldr", "s", 4, v, base, off) }
func strQ(v vec, base gp, off int) { memory(0x3d800000, "str", "q", 16, v, base, off) }
func strS(v vec, base gp, off int) { memory(0xbd000000, "str", "s", 4, v, base, off) }

func pair(code uint32, name string, v, w vec, base gp, off int) {
	if off%16 != 0 || off < -1024 || off > 1008 {
		panic(fmt.Sprint("offset ", off))
	}
	word(code|uint32(off/16&127)<<15|uint32(w)<<10|uint32(base)<<5|uint32(v), "%s q%d, q%d, [%s, #%d]", name, uint32(v), uint32(w), base.x(), off)
}

func ldp(v, w vec, base gp, off int) { pair(0xad400000, "ldp", v, w, base, off) }
func stp(v, w vec, base gp, off int) { pair(0xad000000, "stp", v, w, base, off) }

// loads reads registers from memory that is together, in pairs.
func loads(vs []vec, base gp, off int) {
	for i := 0; i < len(vs); i += 2 {
		if i+1 < len(vs) {
			ldp(vs[i], vs[i+1], base, off+16*i)
		} else {
			ldrQ(vs[i], base, off+16*i)
		}
	}
}

// stores is the reverse of loads.
func stores(vs []vec, base gp, off int) {
	for i := 0; i < len(vs); i += 2 {
		if i+1 < len(vs) {
			stp(vs[i], vs[i+1], base, off+16*i)
		} else {
			strQ(vs[i], base, off+16*i)
		}
	}
}

// three writes an instruction of three registers.
func three(code uint32, name, kind string, d, n, m vec) {
	word(code|uint32(m)<<16|uint32(n)<<5|uint32(d), "%s %v.%s, %v.%s, %v.%s", name, d, kind, n, kind, m, kind)
}

// two writes an instruction of two registers.
func two(code uint32, name, kd, kn string, d, n vec) {
	word(code|uint32(n)<<5|uint32(d), "%s %v.%s, %v.%s", name, d, kd, n, kn)
}

// byLane writes an instruction whose last operand is a lane.
func byLane(code uint32, name, kd, kn, km string, d, n vec, m lane) {
	word(code|(m.i&1)<<21|(m.i>>1)<<11|uint32(m.v)<<16|uint32(n)<<5|uint32(d),
		"%s %v.%s, %v.%s, %v.%s[%d]", name, d, kd, n, kn, m.v, km, m.i)
}

// shift writes a shift by a constant; code holds it as the instruction has it.
func shift(code uint32, name, kind string, d, n vec, by int) {
	word(code|uint32(n)<<5|uint32(d), "%s %v.%s, %v.%s, #%d", name, d, kind, n, kind, by)
}

// Integers. A final B is for bytes, S for 32 bits.

func zero(v vec) { word(0x4f00e400|uint32(v), "movi %v.16b, #0", v) }
func move(d, n vec) {
	word(0x4ea01c00|uint32(n)<<16|uint32(n)<<5|uint32(d), "mov %v.16b, %v.16b", d, n)
}
func sdot(d, n vec, m lane) { byLane(0x4f80e000, "sdot", "4s", "16b", "4b", d, n, m) }
func sdotVec(d, n, m vec) {
	word(0x4e809400|uint32(m)<<16|uint32(n)<<5|uint32(d), "sdot %v.4s, %v.16b, %v.16b", d, n, m)
}
func and(d, n, m vec)             { three(0x4e201c00, "and", "16b", d, n, m) }
func or(d, n, m vec)              { three(0x4ea01c00, "orr", "16b", d, n, m) }
func xor(d, n, m vec)             { three(0x6e201c00, "eor", "16b", d, n, m) }
func not(d, n vec)                { two(0x6e205800, "mvn", "16b", "16b", d, n) }
func subB(d, n, m vec)            { three(0x6e208400, "sub", "16b", d, n, m) }
func mlsB(d, n, m vec)            { three(0x6e209400, "mls", "16b", d, n, m) }
func testB(d, n, m vec)           { three(0x4e208c00, "cmtst", "16b", d, n, m) }
func testS(d, n, m vec)           { three(0x4ea08c00, "cmtst", "4s", d, n, m) }
func addS(d, n, m vec)            { three(0x4ea08400, "add", "4s", d, n, m) }
func subS(d, n, m vec)            { three(0x6ea08400, "sub", "4s", d, n, m) }
func negS(d, n vec)               { two(0x6ea0b800, "neg", "4s", "4s", d, n) }
func shrB(d, n vec, by int)       { shift(0x6f000400|uint32(16-by)<<16, "ushr", "16b", d, n, by) }
func shlInsertB(d, n vec, by int) { shift(0x6f005400|uint32(8+by)<<16, "sli", "16b", d, n, by) }
func shrS(d, n vec, by int)       { shift(0x6f000400|uint32(64-by)<<16, "ushr", "4s", d, n, by) }
func shrSignedS(d, n vec, by int) { shift(0x4f000400|uint32(64-by)<<16, "sshr", "4s", d, n, by) }
func shlS(d, n vec, by int)       { shift(0x4f005400|uint32(32+by)<<16, "shl", "4s", d, n, by) }
func spread(d vec, n lane) {
	word(0x4e040400|n.i<<19|uint32(n.v)<<5|uint32(d), "dup %v.4s, %v.s[%d]", d, n.v, n.i)
}
func lookup(d, table, index vec) {
	word(0x4e000000|uint32(index)<<16|uint32(table)<<5|uint32(d), "tbl %v.16b, {%v.16b}, %v.16b", d, table, index)
}

// Numbers of 32 bits.

func fmla(d, n, m vec)          { three(0x4e20cc00, "fmla", "4s", d, n, m) }
func fmlaLane(d, n vec, m lane) { byLane(0x4f801000, "fmla", "4s", "4s", "s", d, n, m) }
func fmul(d, n, m vec)          { three(0x6e20dc00, "fmul", "4s", d, n, m) }
func fmulLane(d, n vec, m lane) { byLane(0x4f809000, "fmul", "4s", "4s", "s", d, n, m) }
func toFloat(d, n vec)          { two(0x4e21d800, "scvtf", "4s", "4s", d, n) }

func fadd(d, n, m vec)    { three(0x4e20d400, "fadd", "4s", d, n, m) }
func fsub(d, n, m vec)    { three(0x4ea0d400, "fsub", "4s", d, n, m) }
func fdiv(d, n, m vec)    { three(0x6e20fc00, "fdiv", "4s", d, n, m) }
func fmax(d, n, m vec)    { three(0x4e20f400, "fmax", "4s", d, n, m) }
func fmin(d, n, m vec)    { three(0x4ea0f400, "fmin", "4s", d, n, m) }
func fabs(d, n vec)       { two(0x4ea0f800, "fabs", "4s", "4s", d, n) }
func fneg(d, n vec)       { two(0x6ea0f800, "fneg", "4s", "4s", d, n) }
func atLeast(d, n, m vec) { three(0x6e20e400, "fcmge", "4s", d, n, m) }
func equal(d, n, m vec)   { three(0x4e20e400, "fcmeq", "4s", d, n, m) }
func choose(d, n, m vec)  { three(0x6e601c00, "bsl", "16b", d, n, m) } // n where d is set, m elsewhere
func minBits(d, n, m vec) { three(0x6ea06c00, "umin", "4s", d, n, m) }
func maxBits(d, n, m vec) { three(0x6ea06400, "umax", "4s", d, n, m) }
func across(code uint32, name string, d, n vec) { // all lanes into the first
	word(code|uint32(n)<<5|uint32(d), "%s s%d, %v.4s", name, uint32(d), n)
}
func maxAcross(d, n vec)     { across(0x6e30f800, "fmaxv", d, n) }
func maxBitsAcross(d, n vec) { across(0x6eb0a800, "umaxv", d, n) }
func addAcross(d, n vec)     { across(0x4eb1b800, "addv", d, n) }

// addLanes adds 16 lanes in four registers as sumLanes does, into the first lane of the
// first.
func addLanes(v []vec) {
	fadd(v[0], v[0], v[2])
	fadd(v[1], v[1], v[3])
	fadd(v[0], v[0], v[1])
	word(0x6e004000|8<<11|uint32(v[0])<<16|uint32(v[0])<<5|uint32(v[1]), "ext %v.16b, %v.16b, %v.16b, #8", v[1], v[0], v[0])
	fadd(v[0], v[0], v[1])
	word(0x7e30d800|uint32(v[0])<<5|uint32(v[0]), "faddp s%d, %v.2s", uint32(v[0]), v[0])
}

// maxLanes is the greatest of 16 lanes, in the first lane of the first register.
func maxLanes(v []vec) {
	fmax(v[0], v[0], v[2])
	fmax(v[1], v[1], v[3])
	fmax(v[0], v[0], v[1])
	maxAcross(v[0], v[0])
}

// result stores the first lane of a register as a result.
func result(v vec, name string, at int) { op("FMOVS F%d, %s+%d(FP)", uint32(v), name, at) }

// argFloat loads a float32 parameter into all lanes of a new register.
func argFloat(name string, at int) vec {
	v := take()
	op("FMOVS %s+%d(FP), F%d", name, at, uint32(v))
	spread(v, lane{v, 0})
	return v
}

// number makes all lanes of a new register a number.
func number(f float64) vec { return splat(math.Float32bits(float32(f))) }

// toHalf makes half floats of the lanes of n, in the lower half of d.
func toHalf(d, n vec) { two(0x0e216800, "fcvtn", "4h", "4s", d, n) }

// bytesOf makes 16 bytes of the low ones of 16 lanes, in the first register.
func bytesOf(v []vec) {
	for i := 0; i < 4; i += 2 {
		two(0x0e612800, "xtn", "4h", "4s", v[i], v[i])
		two(0x4e612800, "xtn2", "8h", "4s", v[i], v[i+1])
	}
	two(0x0e212800, "xtn", "8b", "8h", v[0], v[0])
	two(0x4e212800, "xtn2", "16b", "8h", v[0], v[2])
}

// storeLane stores a lane and moves the address on by a register.
func storeLane(of lane, to, by gp) {
	word(0x0d808000|(of.i>>1)<<30|(of.i&1)<<12|uint32(by)<<16|uint32(to)<<5|uint32(of.v),
		"st1 {%v.s}[%d], [%s], %s", of.v, of.i, to.x(), by.x())
}

// halves makes four float32 of the lower or of the upper half floats of n.
func halves(d, n vec, upper bool) {
	if upper {
		two(0x4e217800, "fcvtl2", "4s", "8h", d, n)
	} else {
		two(0x0e217800, "fcvtl", "4s", "4h", d, n)
	}
}

// loadHalves reads half floats and makes float32 of them, four to a register; an even number of registers.
func loadHalves(vs []vec, base gp, off int) {
	var raw []vec
	for i := 0; i < len(vs); i += 2 {
		raw = append(raw, vs[i])
	}
	loads(raw, base, off)
	for i := 0; i < len(vs); i += 2 {
		halves(vs[i+1], vs[i], true)
		halves(vs[i], vs[i], false)
	}
}
