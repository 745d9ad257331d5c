package hub

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Fetch puts a file into a folder and returns its path. If it is there already
// with the right size, and the right checksum where one is known, nothing is
// fetched.
func (c *Client) Fetch(ctx context.Context, f File, folder string) (string, error) {
	if !plain(f.Name) {
		return "", fmt.Errorf("%w: file %q", ErrRef, f.Name)
	}
	to := filepath.Join(folder, f.Name)
	if st, err := os.Stat(to); err == nil && st.Mode().IsRegular() && (f.Size == 0 || st.Size() == f.Size) {
		if f.SHA256 == "" {
			return to, nil
		}
		if sum, err := sumOf(to); err == nil && strings.EqualFold(sum, f.SHA256) {
			return to, nil
		}
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	part := to + ".part"
	out, err := os.OpenFile(part, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer out.Close()
	if err := c.download(ctx, f, out); err != nil {
		return "", fmt.Errorf("%s: %w (what is there is kept in %s; the same command goes on from it)", f.Name, err, part)
	}
	if err := out.Sync(); err != nil {
		return "", err
	}
	if f.SHA256 != "" {
		sum, err := sumOf(part)
		if err != nil {
			return "", err
		}
		if !strings.EqualFold(sum, f.SHA256) {
			os.Remove(part)
			return "", fmt.Errorf("%w: %s is %s, want %s; it was removed, fetch it again", ErrChecksum, f.Name, sum, f.SHA256)
		}
	}
	if err := out.Close(); err != nil {
		return "", err
	}
	return to, os.Rename(part, to)
}

// download appends what is missing, over as many connections as it takes.
func (c *Client) download(ctx context.Context, f File, out *os.File) error {
	tries, wait := c.Tries, c.Wait
	if tries == 0 {
		tries = 5
	}
	if wait == 0 {
		wait = time.Second
	}
	for failed := 0; ; {
		have, err := out.Seek(0, io.SeekEnd)
		if err != nil {
			return err
		}
		if f.Size > 0 && have == f.Size {
			return nil
		}
		if f.Size > 0 && have > f.Size { // of another file
			if err := out.Truncate(0); err != nil {
				return err
			}
			continue
		}
		got, err := c.once(ctx, f, out, have)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, errRange) || errors.Is(err, errOther):
			if f.Size == 0 && errors.Is(err, errRange) { // all of it is there
				return nil
			}
			if err := out.Truncate(0); err != nil {
				return err
			}
		case !errors.Is(err, errAgain):
			return err
		}
		if got > 0 {
			failed = 0
		}
		if failed++; failed >= tries {
			return err
		}
		select {
		case <-time.After(wait << min(failed-1, 6)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// once reads one connection to its end and returns the bytes that it brought.
func (c *Client) once(ctx context.Context, f File, out *os.File, have int64) (got int64, err error) {
	stall := c.Stall
	if stall == 0 {
		stall = time.Minute
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(stall, func() { cancel(errStall) })
	defer silent.Stop()
	resp, err := c.get(ctx, f.URL, have)
	if err != nil {
		if errors.Is(err, errRange) || errors.Is(err, errOther) || errors.Is(err, ErrNotFound) || errors.Is(err, ErrDenied) {
			return 0, err
		}
		if context.Cause(ctx) == errStall {
			err = errStall
		}
		return 0, fmt.Errorf("%w: %w", errAgain, err)
	}
	defer resp.Body.Close()
	if have > 0 && resp.StatusCode != http.StatusPartialContent { // from the start
		if err := out.Truncate(0); err != nil {
			return 0, err
		}
		if have, err = out.Seek(0, io.SeekStart); err != nil {
			return 0, err
		}
	}
	total := f.Size
	if total == 0 && resp.ContentLength > 0 {
		total = have + resp.ContentLength
	}
	buf := make([]byte, 1<<20)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			silent.Reset(stall)
			if total > 0 && have+int64(n) > total {
				return got, fmt.Errorf("the server sends more than the %d bytes of the file", total)
			}
			if _, err := out.Write(buf[:n]); err != nil {
				return got, err
			}
			have += int64(n)
			got += int64(n)
			if c.Progress != nil {
				c.Progress(Progress{File: f.Name, Done: have, Total: total})
			}
		}
		switch {
		case err == io.EOF && total > 0 && have < total:
			return got, fmt.Errorf("%w: the connection ended after %d of %d bytes", errAgain, have, total)
		case err == io.EOF:
			return got, nil
		case context.Cause(ctx) == errStall:
			return got, fmt.Errorf("%w: %w", errAgain, errStall)
		case err != nil:
			return got, fmt.Errorf("%w: %w", errAgain, err)
		}
	}
}

// sumOf returns the SHA-256 of a file in hex.
func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
