package engine

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/cache"
)

// outlooked is an outlook over a cache of one prefix a branch, of which each claims
// its own. Time is set by hand.
type outlooked struct {
	*outlook
	t   *testing.T
	c   *cache.Cache
	now time.Duration
}

func newOutlooked(t *testing.T, branches string) *outlooked {
	o := &outlooked{t: t, c: cache.New(len(branches))}
	o.outlook = newOutlook(func() time.Duration { return o.now })
	for i := range branches {
		h := o.c.Match(cache.Namespace{}, nil)
		page, _ := o.c.Alloc(nil, 1)
		o.c.Extend(h, o.prefix(branches[i]), page)
		o.c.Release(page)
		o.c.Claim(h, o.of(branches[i]), 0)
		o.c.Unpin(h)
		o.gone(o.c, o.of(branches[i]))
	}
	return o
}

func (o *outlooked) of(branch byte) cache.Owner { return cache.Owner{Run: "r", Branch: string(branch)} }
func (o *outlooked) prefix(branch byte) []cache.Token {
	p := make([]cache.Token, cache.PageTokens)
	for i := range p {
		p[i] = cache.Token(branch)
	}
	return p
}

// does lets a branch do something at a time.
func (o *outlooked) does(branch byte, at time.Duration, what string, takes time.Duration) {
	o.at(at)
	o.foresee(o.c, o.of(branch), backend.Absence{Doing: what, For: takes}, at)
}

func (o *outlooked) returns(branch byte, at time.Duration) {
	o.at(at)
	o.back(o.c, o.of(branch))
}

func (o *outlooked) at(t time.Duration) {
	o.now = t
	o.tick(o.c)
}

// evicts wants the branches to be evicted in this order.
func (o *outlooked) evicts(want string) {
	o.t.Helper()
	var got []byte
	left := want
	for range want {
		if _, ok := o.c.Alloc(nil, 1); !ok {
			o.t.Fatal("no page")
		}
		for i := range left {
			if o.c.Peek(cache.Namespace{}, o.prefix(left[i])) == 0 {
				got = append(got, left[i])
				left = left[:i] + left[i+1:]
				break
			}
		}
	}
	if string(got) != want {
		o.t.Errorf("evicted %s, want %s", got, want)
	}
	if err := o.c.Check(); err != nil {
		o.t.Error(err)
	}
}

const sec = time.Second

func TestWhoComesBackLastIsEvictedFirst(t *testing.T) {
	o := newOutlooked(t, "abcd")
	o.does('a', 0, "sleep", 3*sec)
	o.does('b', 0, "sleep", 9*sec)
	o.does('c', 1*sec, "sleep", 1*sec)
	o.returns('d', 1*sec) // its request waits
	o.evicts("bacd")
}

func TestHowLongThingsTakeIsLearned(t *testing.T) {
	o := newOutlooked(t, "abcd")
	for i := range 5 {
		at := time.Duration(i) * 11 * sec
		o.does('a', at, "build", 0)
		o.does('b', at, "search", 0)
		o.does('c', at, "sleep", sec)
		o.does('d', at, "sleep", sec)
		o.returns('b', at+1*sec)
		o.returns('a', at+10*sec)
	}
	o.does('a', 60*sec, "build", 0)
	o.does('b', 64*sec, "search", 0)
	o.does('c', 65*sec, "sleep", 7*sec)
	o.does('d', 65*sec, "sleep", 1*sec) // before a, who began long ago
	if got := o.usual("build"); got != 10*sec {
		t.Errorf("a build takes %v", got)
	}
	o.evicts("cadb")
}

// TestNothingIsKnown: before anything has returned, what began first is expected
// first, and everything later the longer that goes on.
func TestNothingIsKnown(t *testing.T) {
	o := newOutlooked(t, "abc")
	o.does('a', 0, "x", 0)
	o.does('b', 2*sec, "x", 0)
	o.at(5 * sec)
	o.does('c', 6*sec, "x", 0)
	o.evicts("cba")
}

// TestLateOnes: who is a little late is expected at once, who is late for long is
// given up.
func TestLateOnes(t *testing.T) {
	o := newOutlooked(t, "ab")
	for i := range 3 {
		o.does('a', time.Duration(i)*10*sec, "x", 0)
		o.returns('a', time.Duration(i)*10*sec+4*sec)
	}
	o.does('a', 100*sec, "x", 0)
	o.at(105 * sec)
	o.does('b', 105*sec, "sleep", sec/2)
	if a := o.away["r"]["a"]; a == nil || a.due != 106*sec {
		t.Errorf("%+v, want to be looked at after 6 s", a)
	}
	o.at(107 * sec)
	if a := o.away["r"]["a"]; a == nil || a.due != 114*sec {
		t.Errorf("%+v, want as much again as it has been away", a)
	}
	for range 300 {
		o.at(o.now + sec)
	}
	if len(o.away) != 0 || len(o.due) != 0 {
		t.Errorf("after minutes: %v", o.away)
	}
	if o.c.Expect(o.of('a'), 1) || o.c.Expect(o.of('b'), 1) {
		t.Error("they still have claims")
	}
}

func TestEndsOfBranchesAndRuns(t *testing.T) {
	o := newOutlooked(t, "abc")
	o.does('a', 0, "sleep", sec)
	o.foresee(o.c, o.of('b'), backend.Absence{Gone: true}, 0)
	o.does('c', 0, "wait", 10*horizon) // is away too long to be waited for
	if o.away["r"]["b"] != nil || o.c.Expect(o.of('b'), 1) || o.c.Expect(o.of('c'), 1) {
		t.Error("a branch that is gone, or for long, has a claim")
	}
	o.endRun(o.c, "r")
	if len(o.away) != 0 || len(o.due) != 0 || o.c.Expect(o.of('a'), 1) {
		t.Error("a run that ended is waited for")
	}
}

func TestNamesOfThingsAreBounded(t *testing.T) {
	o := newOutlooked(t, "a")
	for i := range 3 * maxHabits {
		at := time.Duration(i) * 10 * sec
		o.does('a', at, fmt.Sprint("thing ", i), 0)
		o.returns('a', at+sec)
	}
	if len(o.habits) > maxHabits {
		t.Errorf("%d names are remembered", len(o.habits))
	}
	if got := o.usual("never seen"); got != sec {
		t.Errorf("something new is expected to take %v, all the others took 1 s", got)
	}
}

// TestAgentsOnAFullCache: the reply is kept with its prompt, and of two agents the
// one that is away for longer goes first, though it asked last.
func TestAgentsOnAFullCache(t *testing.T) {
	e := newFake(t, func(c *Config, _ *fakeModel) { c.Pages = 20 })
	ask := func(run, text string) ([]backend.Turn, int) {
		turns := []backend.Turn{user(text + longText(150))}
		r := mustGenerate(t, e, &backend.Request{Turns: turns, MaxTokens: 20, IgnoreEOS: true, Hints: backend.Hints{Run: run}})
		turns = append(turns, backend.Turn{Role: backend.Assistant, Parts: []backend.Part{r.Part}}, user("and?"))
		return turns, r.Usage.PromptTokens + r.Usage.SampledTokens - 1
	}
	soon, all := ask("soon", "A")
	e.Foresee("soon", "", backend.Absence{Doing: "search", For: time.Second})
	late, _ := ask("late", "B")
	e.Foresee("late", "", backend.Absence{Doing: "build", For: 30 * time.Second})
	mustGenerate(t, e, &backend.Request{Turns: []backend.Turn{raw(longText(250))}, MaxTokens: 1})
	again := func(run string, turns []backend.Turn) int {
		return mustGenerate(t, e, &backend.Request{Turns: turns, MaxTokens: 1, Hints: backend.Hints{Run: run}}).Usage.CachedTokens
	}
	if got := again("soon", soon); got != all {
		t.Errorf("%d of %d tokens of the agent that comes back soon are cached", got, all)
	}
	if got := again("late", late); got >= all {
		t.Errorf("all %d tokens of the agent that is away for long are cached", got)
	}
	e.EndRun("soon")
	e.EndRun("late")
	e.do(func() {
		if n := len(e.sched.outlook.away); n != 0 {
			t.Errorf("%d runs are waited for", n)
		}
	})
}

// TestPagesOfALongConversation: each turn goes on in the page where the one before
// it ended, so the cache holds nothing twice.
func TestPagesOfALongConversation(t *testing.T) {
	e := newFake(t, func(_ *Config, m *fakeModel) { m.script = func([]backend.Token) backend.Token { return 'q' } })
	var turns []backend.Turn
	total := 0
	for i := range 12 {
		turns = append(turns, user(fmt.Sprint("turn ", i, " of many")))
		r := mustGenerate(t, e, &backend.Request{Turns: turns, MaxTokens: 9, IgnoreEOS: true})
		turns = append(slices.Clone(turns), backend.Turn{Role: backend.Assistant, Parts: []backend.Part{r.Part}})
		total = r.Usage.PromptTokens + r.Usage.SampledTokens - 1
	}
	if st := e.Stats(); st.Evictable != pagesFor(total) {
		t.Errorf("%d pages for %d tokens", st.Evictable, total)
	}
}
