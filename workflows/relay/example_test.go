package relay_test

import (
	"context"
	"fmt"

	"github.com/coppice-run/coppice/runtime"
	"github.com/coppice-run/coppice/workflows/relay"
)

// A worker tells of a run what another had told before it died; readers see each token
// once.
func Example() {
	receiver := relay.NewReceiver("")
	following, err := receiver.Follow("alert-4711", nil, runtime.SinkFunc(func(e runtime.Event) {
		fmt.Printf("%d %s %q\n", e.Seq, e.Kind, e.Text)
	}))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer following.Close()
	worker := func(texts ...string) {
		sender := relay.NewSender(receiver.Post) // of a worker elsewhere: relay.HTTP
		events := relay.NewMerge(sender.Sink("alert-4711"), false, nil)
		at := 0
		for _, text := range texts {
			events.Tell(runtime.Event{Kind: runtime.TextDelta, Task: "why", Text: text, Offset: at})
			at += len(text)
		}
		if err := sender.Close(context.Background()); err != nil {
			fmt.Println(err)
		}
	}
	worker("The pod ", "was ")
	worker("The pod ", "was ", "killed.")
	// Output:
	// 1 delta "The pod "
	// 2 delta "was "
	// 3 delta "killed."
}
