// Package page is the server's built-in web page: chat and a view of the device, in one HTML file that talks to nothing
// but the API it is served beside.
package page

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"time"
)

//go:embed page.html
var source []byte

//go:embed icon.svg
var icon []byte

// Handler serves the page at GET / and its icon at GET /favicon.ico. Browsers keep both and ask each time whether they
// have changed, so a new build of the server shows at the next load.
func Handler() http.Handler {
	// Browsers hash inline scripts after they have normalized line ends, and a checkout may have changed those.
	html := bytes.ReplaceAll(source, []byte("\r\n"), []byte("\n"))
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", newAsset(html, "text/html; charset=utf-8", policy(html)))
	mux.Handle("GET /favicon.ico", newAsset(icon, "image/svg+xml", "default-src 'none'"))
	return mux
}

// An asset is a file that never changes while the server runs.
type asset struct {
	body   []byte
	header map[string]string
}

func newAsset(body []byte, contentType, policy string) *asset {
	sum := sha256.Sum256(body)
	return &asset{body, map[string]string{
		"Content-Type":                 contentType,
		"Content-Security-Policy":      policy,
		"ETag":                         fmt.Sprintf(`"%x"`, sum[:16]),
		"Cache-Control":                "no-cache",
		"X-Content-Type-Options":       "nosniff",
		"X-Frame-Options":              "DENY",
		"Referrer-Policy":              "no-referrer",
		"Cross-Origin-Opener-Policy":   "same-origin",
		"Cross-Origin-Resource-Policy": "same-origin",
	}}
}

func (a *asset) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range a.header {
		w.Header().Set(name, value)
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(a.body))
}

// policy is the page's Content-Security-Policy: its own script and style by their hashes, requests to its own origin,
// and nothing else. Trusted Types make the browser refuse text as HTML, so that a slip in the script cannot turn what a
// model says into markup.
func policy(html []byte) string {
	return strings.Join([]string{
		"default-src 'none'",
		"script-src " + hashOf(html, "<script type=\"module\">", "</script>"),
		"style-src " + hashOf(html, "<style>", "</style>"),
		"connect-src 'self'",
		"img-src 'self'",
		"object-src 'none'",
		"base-uri 'none'",
		"form-action 'none'",
		"frame-ancestors 'none'",
		"require-trusted-types-for 'script'",
		"trusted-types 'none'",
	}, "; ")
}

// hashOf is the source expression for the text between two tags.
func hashOf(html []byte, open, end string) string {
	_, rest, _ := bytes.Cut(html, []byte(open))
	text, _, _ := bytes.Cut(rest, []byte(end))
	sum := sha256.Sum256(text)
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
