package backend_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
)

// Two questions about one system prompt, to any backend: here a scripted one.
// What the first computed the second finds in the cache.
func Example() {
	var be backend.Backend = model()
	system := backend.Turn{Role: backend.System, Parts: []backend.Part{{Text: "You are on call."}}}
	for _, question := range []string{"memory?", "network?"} {
		r, err := be.Generate(context.Background(), &backend.Request{
			ID:        question,
			Turns:     []backend.Turn{system, {Role: backend.User, Parts: []backend.Part{{Text: question}}}},
			MaxTokens: 20,
		}, func(d backend.Delta) { fmt.Print(d.Text) })
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("", r.Finish, r.Usage.CachedTokens > 0)
	}
	// Output:
	// high stop false
	// fine stop true
}

// What a backend cannot do it refuses with an error that can be matched.
func ExampleErrUnsupported() {
	m := model()
	_, err := m.Generate(context.Background(), &backend.Request{
		ID:         "verdict",
		Turns:      []backend.Turn{{Role: backend.User, Parts: []backend.Part{{Text: "?"}}}},
		Constraint: backend.Constraint{Regex: `(a)\1`},
	}, nil)
	fmt.Println(errors.Is(err, backend.ErrUnsupported))
	// Output: true
}

// Options are compared by what the model gives them, without writing any of them.
func ExampleBackend_score() {
	r, err := model().Score(context.Background(), &backend.ScoreRequest{
		ID:      "severity",
		Turns:   []backend.Turn{{Role: backend.User, Parts: []backend.Part{{Text: "How bad?"}}}},
		Options: []string{"low", "high"},
		Closed:  true,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.Options[0].Sum < r.Options[1].Sum)
	// Output: true
}

// model is a scripted backend.
func model() *puppet.Model {
	m := puppet.New()
	m.OnID("memory?").Reply("high")
	m.OnID("severity").Scores(map[string]float64{"low": -3, "high": -0.1})
	m.OnAny().Reply("fine")
	return m
}
