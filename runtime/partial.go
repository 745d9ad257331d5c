package runtime

import (
	"encoding/json"

	"github.com/coppice-run/coppice/lang"
)

// partialWatch is somebody who wants the value of a json node as it grows.
type partialWatch struct {
	node string
	f    func(task string, value json.RawMessage)
}

// WithPartials adds events of the kind PartialValue: the value of each json node
// as far as it is written, see [lang.Partial].
func WithPartials() Option { return func(c *config) { c.partials = true } }

// OnPartial calls f with the value of a json node as far as it is written, each time
// that it has grown; node is its id in the program, e.g. "looks/finding", and task
// the instance. Keys that are not written yet leave zero values, a text ends where
// it is; a value that does not fit T yet is left out. f is called from the goroutine
// that decodes tokens and must return at once. The whole value is what the node's
// variable has.
func OnPartial[T any](node string, f func(task string, value T)) Option {
	return func(c *config) {
		c.watch = append(c.watch, partialWatch{node, func(task string, raw json.RawMessage) {
			var v T
			if json.Unmarshal(raw, &v) == nil {
				f(task, v)
			}
		}})
	}
}

// growing follows the value of a task while it streams; nil if nobody wants it.
type growing struct {
	em    *emitter
	task  *Task
	value lang.Partial
	last  int // length of what was told last
	watch []partialWatch
}

func (em *emitter) growing(t *Task) *growing {
	if t.Node.JSON == nil || t.Generate == nil {
		return nil
	}
	g := &growing{em: em, task: t}
	for _, w := range em.watch {
		if w.node == t.Node.ID {
			g.watch = append(g.watch, w)
		}
	}
	if !em.partials && g.watch == nil {
		return nil
	}
	return g
}

// add takes the next piece of the text.
func (g *growing) add(text string) {
	if g == nil || text == "" {
		return
	}
	g.value.Add(text)
	v, ok := g.value.Value()
	if !ok || len(v) == g.last {
		return
	}
	g.last = len(v)
	if g.em.partials {
		g.em.emit(Event{Kind: PartialValue, Task: g.task.ID, Node: g.task.Node.ID, Branch: g.task.Branch, Value: v})
	}
	for _, w := range g.watch {
		w.f(g.task.ID, v)
	}
}
