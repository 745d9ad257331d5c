package main

import (
	"fmt"
	"runtime"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/backend/compute"
)

// device is what a model can run on.
type device struct {
	ID      string `json:"id"`
	Kind    string `json:"kind"`
	Name    string `json:"name"`
	Threads int    `json:"threads"`
	Kernels string `json:"kernels"` // see compute.Tier
	// With --measure; billions a second.
	ReadGBs   float64 `json:"read_gb_s,omitempty"`
	Int8GMACs float64 `json:"int8_gmac_s,omitempty"`
	BF16GMACs float64 `json:"bf16_gmac_s,omitempty"`
	F32GMACs  float64 `json:"f32_gmac_s,omitempty"`
}

func (a *app) devicesCmd() *cobra.Command {
	var asJSON, measure bool
	c := &cobra.Command{
		Use:   "devices",
		Short: "List what models can run on",
		Long: `List what our own engine can run models on: the processor, with the kernels that
it chose by the instructions it found. --measure adds the peaks that 'coppice bench'
sets beside its figures: bytes read and multiply-adds, in billions a second.`,
		Args: exactly(),
		RunE: func(*cobra.Command, []string) error {
			d := device{ID: "cpu", Kind: "cpu", Name: processor(), Threads: runtime.NumCPU(), Kernels: compute.Tier()}
			if measure {
				l, err := compute.MeasureLimits(0)
				if err != nil {
					return err
				}
				d.ReadGBs, d.Int8GMACs, d.BF16GMACs, d.F32GMACs = l.ReadGBs, l.Int8GMACs, l.BF16GMACs, l.F32GMACs
			}
			if asJSON {
				return a.printJSON(map[string][]device{"devices": {d}})
			}
			w := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "id\tname\tthreads\tkernels")
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", d.ID, d.Name, d.Threads, d.Kernels)
			if err := w.Flush(); err != nil || !measure {
				return err
			}
			_, err := fmt.Fprintf(a.out, "\nreads %.1f GB/s; multiplies and adds, in billions a second: %.0f of 8 bits, %.0f of bfloat16, %.0f of float32\n",
				d.ReadGBs, d.Int8GMACs, d.BF16GMACs, d.F32GMACs)
			return err
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&measure, "measure", false, "measure its peaks too; takes half a second")
	return c
}
