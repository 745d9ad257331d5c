package compute_test

import (
	"fmt"
	"log"

	"github.com/coppice-run/coppice/backend/compute"
)

// A product of a matrix of 2 rows and 3 columns with the activations of one
// token.
func Example() {
	const rows, cols = 2, 3
	size := compute.MatrixBytes(compute.Float32, rows, cols)
	mem, err := compute.NewMemory(size)
	if err != nil {
		log.Fatal(err)
	}
	defer mem.Free()
	w := compute.NewMatrix(compute.Float32, rows, cols, mem.Bytes()[:size])
	w.SetFloats(0, []float32{1, 2, 3})
	w.SetFloats(1, []float32{0, 1, 0})

	x := compute.NewActs(1, cols)
	x.Reset(1, cols)
	x.SetRow(0, []float32{10, 20, 30}, 1<<compute.Floats)

	y := make([]float32, w.Panels()*compute.PanelRows)
	w.Mul(y, len(y), x, 0, w.Panels())
	fmt.Println(y[:rows])
	// Output: [140 20]
}
