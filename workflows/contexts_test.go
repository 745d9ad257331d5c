package workflows

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend"
)

func turn(role backend.Role, texts ...string) backend.Turn {
	t := backend.Turn{Role: role}
	for _, s := range texts {
		t.Parts = append(t.Parts, backend.Part{Text: s})
	}
	return t
}

// TestPromptsComeBackWhole grows prompts at random, as branches do, and sends
// each as what it has beyond the ones before.
func TestPromptsComeBackWhole(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	store := newMemory()
	for range 200 {
		c := newContexts(store)
		var ms marks
		var turns []backend.Turn
		for step := range 12 {
			turns = append([]backend.Turn(nil), turns...) // as a branch shares its turns
			n := len(turns)
			switch k := rng.IntN(5); {
			case k == 0 && n > 0 && turns[n-1].Open:
				turns[n-1].Open = false
			case k <= 1 && n > 0 && (turns[n-1].Open || turns[n-1].Role == backend.Raw):
				turns[n-1].Parts = append(turns[n-1].Parts[:len(turns[n-1].Parts):len(turns[n-1].Parts)], backend.Part{Text: fmt.Sprint("more ", step), Tokens: []backend.Token{int32(step)}, Model: "m"})
			case k == 2:
				x := turn(backend.Assistant, fmt.Sprint("open ", step))
				x.Open = true
				turns = append(turns, x)
			case k == 3 && n > 1: // what was refused is taken back
				turns = turns[:n-1]
			default:
				turns = append(turns, turn(backend.User, fmt.Sprint("text ", step)))
			}
			base := rng.IntN(len(turns) + 1)
			from, common, own := ms.split(turns, base)
			parent := from.hash
			if rng.IntN(3) == 0 {
				c = newContexts(store) // another worker
			}
			_, hash, err := c.grow(parent, common)
			require.NoError(t, err)
			got, hash, err := c.grow(hash, own)
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint(turns), fmt.Sprint(got))
			loaded, err := newContexts(store).load(hash)
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint(turns), fmt.Sprint(loaded))
			ms = ms.add(mark{hash, turns})
		}
	}
}

func TestSiblingsShareTheirBase(t *testing.T) {
	store := newMemory()
	c := newContexts(store)
	base := []backend.Turn{turn(backend.System, strings.Repeat("runbook ", 1000)), turn(backend.User, "alert")}
	for i := range 50 {
		turns := append(append([]backend.Turn(nil), base...), turn(backend.User, fmt.Sprint(i)))
		from, common, own := marks(nil).split(turns, len(base))
		parent := from.hash
		require.Empty(t, parent)
		_, h, err := c.grow(parent, common)
		require.NoError(t, err)
		_, _, err = c.grow(h, own)
		require.NoError(t, err)
	}
	size := 0
	for _, d := range store.data {
		size += len(d)
	}
	require.Less(t, size, 2*8000+50*200)
}

func TestMissingContextIsSaid(t *testing.T) {
	_, err := newContexts(newMemory()).load(Hash([]byte("x")))
	require.ErrorIs(t, err, ErrMissing)
}

func TestDirKeepsAndMends(t *testing.T) {
	d, err := OpenDir(t.TempDir())
	require.NoError(t, err)
	h, err := d.Put([]byte("hello"), false)
	require.NoError(t, err)
	h2, err := d.Put([]byte("hello"), true)
	require.NoError(t, err)
	require.Equal(t, h, h2)
	got, err := d.Get(h)
	require.NoError(t, err)
	require.Equal(t, "hello", string(got))

	require.NoError(t, os.WriteFile(d.file(h), []byte("hellO"), 0o600))
	_, err = d.Get(h)
	require.ErrorIs(t, err, ErrMissing)
	_, err = d.Put([]byte("hello"), false)
	require.NoError(t, err)
	_, err = d.Get(h)
	require.NoError(t, err)
	for _, bad := range []string{"", "zz", "../../etc/passwd", strings.Repeat("g", 64), strings.Repeat("/", 64)} {
		_, err := d.Get(bad)
		require.ErrorIs(t, err, ErrMissing, bad)
	}
}

func TestPayloads(t *testing.T) {
	key, err := NewKey([]byte("a secret of twenty bytes"))
	require.NoError(t, err)
	other, err := NewKey([]byte("another secret, as long"))
	require.NoError(t, err)
	_, err = NewKey([]byte("short"))
	require.Error(t, err)
	for _, k := range []*Key{nil, key} {
		for _, size := range []int{10, 3 << 20} {
			store := newMemory()
			c := Converter(store, k)
			text := strings.Repeat("x", size)
			p, err := c.ToPayload(text)
			require.NoError(t, err)
			require.LessOrEqual(t, len(p.Data), Inline+200)
			again, err := c.ToPayload(text)
			require.NoError(t, err)
			require.Equal(t, p.Data, again.Data)
			var got string
			require.NoError(t, c.FromPayload(p, &got))
			require.Equal(t, text, got)
			if size > Inline {
				require.Len(t, store.data, 1)
			}
			if k == nil {
				continue
			}
			require.NotContains(t, string(p.Data), "xxx")
			for _, d := range store.data {
				require.NotContains(t, string(d), "xxx")
			}
			require.Error(t, Converter(store, other).FromPayload(p, &got))
			require.Error(t, Converter(store, nil).FromPayload(p, &got))
		}
	}
}
