package workflows

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// TestStoreIsDurable: what Put was given to keep is synced, with its name and the
// folder's; what is only a cache costs no sync.
func TestStoreIsDurable(t *testing.T) {
	path := t.TempDir()
	d, err := OpenDir(path)
	require.NoError(t, err)
	var synced []string
	d.sync = func(f *os.File) error {
		name, err := filepath.Rel(path, f.Name())
		require.NoError(t, err)
		synced = append(synced, name)
		return nil
	}
	data := []byte("something")
	h := Hash(data)
	_, err = d.Put(data, true)
	require.NoError(t, err)
	require.Empty(t, synced)
	_, err = d.Put(data, false)
	require.NoError(t, err)
	require.Equal(t, []string{filepath.Join(h[:2], h[2:]), h[:2], "."}, synced, "it lay there as a cache only")

	synced = nil
	other := []byte("something else")
	h = Hash(other)
	_, err = d.Put(other, false)
	require.NoError(t, err)
	require.Len(t, synced, 3)
	require.True(t, strings.HasPrefix(synced[0], filepath.Join(h[:2], "new-")), "the content before its name")
	require.Equal(t, []string{h[:2], "."}, synced[1:])

	broken := errors.New("the disk is full")
	d.sync = func(*os.File) error { return broken }
	_, err = d.Put([]byte("lost"), false)
	require.ErrorIs(t, err, broken)
}

// TestTextsKeepTheirForm: what goes through a history comes back byte by byte, so
// that prompts are the same as in process.
func TestTextsKeepTheirForm(t *testing.T) {
	f, err := lang.NewFunc("look", func(context.Context) (map[string]string, error) {
		return map[string]string{"text": "<b>this & that</b>\u2028"}, nil
	})
	require.NoError(t, err)
	const program = `
name: form
inputs: {q: any}
steps:
- call: {name: found, func: look, result: any}
- user: ${found} ${q}
- gen: {name: x, max_tokens: 300}
- return: '{found: found, x: x, q: q}'
`
	args := lang.Args{"q": map[string]any{"<": "&"}}
	echo := func() *puppet.Model {
		m := puppet.New()
		m.OnAny().ReplyFunc(func(p *puppet.Prompt) (string, error) { return "<i>" + p.Turns[0].Text(), nil })
		return m
	}
	g, err := lang.Decode([]byte("coppice: 1\n"+program), "test.yaml")
	require.NoError(t, err)
	want, err := runtime.RunGraph(t.Context(), echo(), g, lang.Funcs{"look": f}, args)
	require.NoError(t, err)
	r := newRig(t, echo(), lang.Funcs{"look": f}, program, args, StartOptions{})
	got, err := r.run()
	require.NoError(t, err)
	require.Equal(t, string(want.Value), string(got.Value))
	require.Contains(t, string(got.Value), "<b>")
	require.Equal(t, string(want.Variables), string(got.Variables))

	p, err := Converter(newMemory(), nil).ToPayload(outcomeOf(want))
	require.NoError(t, err)
	require.NotContains(t, string(p.GetData()), `\u003c`)
}

// TestNearReadsOnce: what was read or written here comes from the cache, and a cache
// that lost it is filled again.
func TestNearReadsOnce(t *testing.T) {
	far, cache := newMemory(), newMemory()
	s := Near(far, cache)
	hash, err := s.Put([]byte("x"), false)
	require.NoError(t, err)
	far.data = map[string][]byte{}
	got, err := s.Get(hash)
	require.NoError(t, err)
	require.Equal(t, "x", string(got))
	other, err := far.Put([]byte("y"), false)
	require.NoError(t, err)
	_, err = s.Get(other)
	require.NoError(t, err)
	require.Contains(t, cache.data, other)
	_, err = s.Get(Hash([]byte("z")))
	require.ErrorIs(t, err, ErrMissing)
}
