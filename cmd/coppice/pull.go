package main

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/cmd/coppice/internal/hub"
)

// The hub that hf: names stand for, unless HF_ENDPOINT names a mirror.
const defaultHub = "https://huggingface.co"

func (a *app) pullCmd() *cobra.Command {
	var (
		folder, sum string
		asJSON      bool
	)
	c := &cobra.Command{
		Use:   "pull MODEL",
		Short: "Fetch a model file",
		Long: `Fetch a model file into the folder where --model finds it by name.

  coppice pull hf:org/repo:Q4_K_M        a file of a repository, by its quantisation
  coppice pull hf:org/repo               Q4_K_M if there is one, else Q8_0, else the only one
  coppice pull https://host/m.gguf       a file by its address

All parts of a split model are fetched. A download that was cut goes on where it
ended when the same command is given again, and the checksum is compared where
the hub tells one. HF_ENDPOINT names a mirror of the hub, HF_TOKEN a token for it.`,
		Args: exactly("MODEL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, err := hub.ParseRef(args[0])
			if err != nil {
				return usageError{err}
			}
			if raw, err := hex.DecodeString(sum); err != nil || len(raw) != sha256.Size && sum != "" {
				return usagef("--sha256 is %q: give the 64 hexadecimal digits of a SHA-256 checksum", sum)
			}
			client := &hub.Client{Base: cmp.Or(os.Getenv("HF_ENDPOINT"), defaultHub), Token: os.Getenv("HF_TOKEN"), Progress: a.progress()}
			if u, err := url.Parse(client.Base); ref.URL == "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
				return usagef("HF_ENDPOINT is %q: give the address of a mirror, e.g. %s", client.Base, defaultHub)
			}
			files, err := client.Files(cmd.Context(), ref)
			if err != nil {
				return pullError(err)
			}
			if sum != "" {
				if len(files) != 1 {
					return usagef("--sha256 is for one file, and %s has %d", args[0], len(files))
				}
				files[0].SHA256 = sum
			}
			var paths []string
			for _, f := range files {
				path, err := client.Fetch(cmd.Context(), f, folder)
				if err != nil {
					return pullError(err)
				}
				paths = append(paths, path)
			}
			fmt.Fprintln(a.errOut)
			f, err := gguf.Open(paths[0])
			if err != nil {
				return fmt.Errorf("what was fetched cannot be used: %w", err)
			}
			info := describe(f.Name(), paths[0], int64(f.Size()), f, nil)
			if err := f.Close(); err != nil {
				return err
			}
			if asJSON {
				return a.printJSON(info)
			}
			fmt.Fprintf(a.out, "%s: %s, %.1f MB\n", paths[0], info.Family, float64(info.Bytes)/1e6)
			return nil
		},
	}
	c.Flags().StringVar(&folder, "folder", modelFolder(), "where to put it (COPPICE_MODELS)")
	c.Flags().StringVar(&sum, "sha256", "", "checksum that the file must have")
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// pullError is a mistake of the caller if the name was wrong.
func pullError(err error) error {
	if errors.Is(err, hub.ErrRef) || errors.Is(err, hub.ErrNotFound) {
		return usageError{err}
	}
	return err
}

// progress shows how far a download is: on a terminal as a line that changes, in
// a log as a line for every tenth.
func (a *app) progress() func(hub.Progress) {
	terminal := false
	if f, ok := a.errOut.(*os.File); ok {
		if st, err := f.Stat(); err == nil {
			terminal = st.Mode()&os.ModeCharDevice != 0
		}
	}
	var file string
	var from, shown int64
	var start, last time.Time
	return func(p hub.Progress) {
		now := time.Now()
		if p.File != file {
			if file != "" && terminal {
				fmt.Fprintln(a.errOut)
			}
			file, from, shown, start, last = p.File, p.Done, -1, now, time.Time{}
		}
		speed := 0.0
		if s := now.Sub(start).Seconds(); s > 0 {
			speed = float64(p.Done-from) / 1e6 / s
		}
		tenth := int64(0)
		if p.Total > 0 {
			tenth = 10 * p.Done / p.Total
		}
		switch {
		case terminal && (now.Sub(last) > 200*time.Millisecond || p.Done == p.Total):
			last = now
			fmt.Fprintf(a.errOut, "\r%s  %s  %.1f MB/s ", p.File, downloadBar(p), speed)
		case !terminal && tenth != shown:
			shown = tenth
			fmt.Fprintf(a.errOut, "%s  %s  %.1f MB/s\n", p.File, downloadBar(p), speed)
		}
	}
}

// downloadBar is a picture of a progress.
func downloadBar(p hub.Progress) string {
	if p.Total <= 0 {
		return fmt.Sprintf("%.1f MB", float64(p.Done)/1e6)
	}
	const width = 20
	var b [width]byte
	for i := range b {
		b[i] = ' '
		if int64(i) < width*p.Done/p.Total {
			b[i] = '='
		}
	}
	return fmt.Sprintf("[%s] %3d%% of %.1f MB", b[:], 100*p.Done/p.Total, float64(p.Total)/1e6)
}
