package lang

import (
	"bytes"
	"encoding/base64"
)

// ImageURL returns a data URL of a picture, a PNG, JPEG, GIF or WebP; empty if the
// bytes are none of these.
func ImageURL(data []byte) string {
	kind := imageKind(data)
	if kind == "" {
		return ""
	}
	return "data:image/" + kind + ";base64," + base64.StdEncoding.EncodeToString(data)
}

// imageKind tells what a picture is from its first bytes.
func imageKind(data []byte) string {
	switch {
	case bytes.HasPrefix(data, []byte("\x89PNG\r\n\x1a\n")):
		return "png"
	case bytes.HasPrefix(data, []byte("\xff\xd8\xff")):
		return "jpeg"
	case bytes.HasPrefix(data, []byte("GIF87a")), bytes.HasPrefix(data, []byte("GIF89a")):
		return "gif"
	case len(data) > 12 && string(data[:4]) == "RIFF" && string(data[8:12]) == "WEBP":
		return "webp"
	}
	return ""
}

// image reads the URL of a picture, or makes one of a file beside the program.
func (d *decoder) image(t *tree) Template {
	if t.kind != treeMap {
		return Template(d.str(t, "image"))
	}
	f := d.fields(t, "image")
	src := f.get("file")
	f.done()
	if src == nil {
		d.errorf(t.line, "write a URL or {file: name}", "image is a map")
		return ""
	}
	name := d.str(src, "image")
	data, ok := d.fileOf(src, "image", name)
	if !ok {
		return ""
	}
	url := ImageURL(data)
	if url == "" {
		d.errorf(src.line, "convert it", "image: file %q is no PNG, JPEG, GIF or WebP", name)
	}
	return Escape(url)
}
