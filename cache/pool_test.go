package cache

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStretches: whatever is free, each page is given once; many pages at once, and those
// of a sequence that goes on after a stretch, lie in stretches of their own place as
// long as one is free; few fill gaps.
func TestStretches(t *testing.T) {
	const size = 4 * Stretch
	r := rand.New(rand.NewPCG(1, 2))
	aligned := 0
	for range 3000 {
		c := New(size)
		for id := range int32(size) { // some are taken
			if r.IntN(4) == 0 && r.IntN(2) == int(id)/Stretch%2 {
				c.pool.take(id)
			}
		}
		free := func(from, n int) bool {
			for id := from; id < from+n; id++ {
				if id < 0 || id >= size || !c.pool.free.has(int32(id)) {
					return false
				}
			}
			return true
		}
		first := c.pool.free.first()
		at, n := r.IntN(3*Stretch), 1+r.IntN(2*Stretch)
		if r.IntN(4) == 0 {
			at, n = Stretch*r.IntN(3), 1
		}
		last := int32(-1)
		if at > 0 {
			last = int32(r.IntN(size))
		}
		id, run := c.pool.place(last, at, n)
		require.LessOrEqual(t, run, n)
		require.True(t, run > 0 && free(int(id), run), "%d pages at %d", run, id)

		want := n
		if at > 0 && at%Stretch == 0 {
			want = max(want, Stretch)
		}
		could := 0 // the longest that can lie as it should
		for _, s := range []int{Stretch, Stretch / 2} {
			for base := 0; base < size && could == 0 && want >= Stretch/2; base += s {
				if k := min(want, s-at%s); free(base+at%s, k) {
					could = k
				}
			}
		}
		switch {
		case could > 0:
			aligned++
			require.Equal(t, min(n, could), run)
			require.Zero(t, (int(id)-at)%(Stretch/2), "page %d of the sequence at %d", at, id)
			if last >= 0 && (int(last)+1-at)%Stretch == 0 && free(int(last)+1, min(want, Stretch-at%Stretch)) {
				require.Equal(t, last+1, id)
			}
		case free(int(last)+1, 1):
			require.Equal(t, last+1, id)
		default:
			require.Equal(t, first, id)
		}
	}
	require.Greater(t, aligned, 500)
}

// TestLongAfterShort: a long sequence lies in stretches though a short one came before, and
// one that began short does so from its second stretch on.
func TestLongAfterShort(t *testing.T) {
	c := New(8 * Stretch)
	short, ok := c.Alloc(nil, 9)
	require.True(t, ok)
	require.Equal(t, int32(8), short[8])
	long, ok := c.Alloc(nil, 3*Stretch)
	require.True(t, ok)
	for i, id := range long {
		require.Equal(t, i%Stretch, int(id)%Stretch)
	}
	for len(short) < 3*Stretch { // it goes on page by page
		short, ok = c.Alloc(short, 1)
		require.True(t, ok)
	}
	for i, id := range short[Stretch:] {
		require.Equal(t, i%Stretch, int(id)%Stretch)
	}
	require.NoError(t, c.Check())
}
