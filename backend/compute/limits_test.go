package compute

import "testing"

// TestReadMeter: the meter reads all of its memory in turn, and however short the time
// something.
func TestReadMeter(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: takes 256 MiB of memory")
	}
	r, err := NewReadMeter(2)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for i := range 2 * readSize / readPart {
		if want := i * readPart % readSize; r.at != want {
			t.Fatalf("read %d begins at %d, want %d", i, r.at, want)
		}
		if rate := r.Rate(0); rate <= 0 {
			t.Errorf("rate %v", rate)
		}
	}
}
