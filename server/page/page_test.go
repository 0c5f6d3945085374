package page

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

func get(t *testing.T, method, path string, header http.Header) *http.Response {
	t.Helper()
	r := httptest.NewRequest(method, path, nil)
	for name, values := range header {
		r.Header[name] = values
	}
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, r)
	return w.Result()
}

func TestHandler(t *testing.T) {
	for _, c := range []struct {
		method, path string
		status       int
		contentType  string
	}{
		{"GET", "/", 200, "text/html; charset=utf-8"},
		{"HEAD", "/", 200, "text/html; charset=utf-8"},
		{"GET", "/favicon.ico", 200, "image/svg+xml"},
		{"POST", "/", 405, ""},
		{"GET", "/page.html", 404, ""},
	} {
		resp := get(t, c.method, c.path, nil)
		if resp.StatusCode != c.status {
			t.Errorf("%s %s: status %d, want %d", c.method, c.path, resp.StatusCode, c.status)
		}
		if c.status != http.StatusOK {
			continue
		}
		for name, want := range map[string]string{
			"Content-Type":           c.contentType,
			"Cache-Control":          "no-cache",
			"X-Content-Type-Options": "nosniff",
			"X-Frame-Options":        "DENY",
			"Referrer-Policy":        "no-referrer",
		} {
			if got := resp.Header.Get(name); got != want {
				t.Errorf("%s %s: %s is %q, want %q", c.method, c.path, name, got, want)
			}
		}
		etag := resp.Header.Get("ETag")
		if again := get(t, c.method, c.path, http.Header{"If-None-Match": {etag}}); etag == "" || again.StatusCode != http.StatusNotModified {
			t.Errorf("%s %s: status %d for the same ETag %s", c.method, c.path, again.StatusCode, etag)
		}
		if again := get(t, c.method, c.path, http.Header{"If-None-Match": {`"other"`}}); again.StatusCode != http.StatusOK {
			t.Errorf("%s %s: status %d for another ETag", c.method, c.path, again.StatusCode)
		}
	}
}

// The policy allows the one script and the one style of the page, whatever a checkout does to line ends.
func TestPolicy(t *testing.T) {
	defer func(was []byte) { source = was }(source)
	want := get(t, "GET", "/", nil).Header.Get("Content-Security-Policy")
	for _, directive := range []string{
		"default-src 'none'", "connect-src 'self'", "object-src 'none'", "base-uri 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'",
	} {
		if !strings.Contains(want, directive) {
			t.Errorf("the policy %q lacks %q", want, directive)
		}
	}
	for _, element := range []string{"script", "style"} {
		all := regexp.MustCompile(`(?s)<`+element+`[^>]*>(.*?)</`+element+`>`).FindAllSubmatch(source, -1)
		if len(all) != 1 {
			t.Fatalf("%d %s elements, want 1", len(all), element)
		}
		sum := sha256.Sum256(all[0][1])
		if hash := "sha256-" + base64.StdEncoding.EncodeToString(sum[:]); !strings.Contains(want, element+"-src '"+hash+"'") {
			t.Errorf("the policy %q does not allow %s %s", want, element, hash)
		}
	}
	source = bytes.ReplaceAll(source, []byte("\n"), []byte("\r\n"))
	if got := get(t, "GET", "/", nil).Header.Get("Content-Security-Policy"); got != want {
		t.Errorf("with other line ends the policy is %q", got)
	}
}

// The page is small and names nothing elsewhere. What it builds elements from is text.
func TestSource(t *testing.T) {
	if len(source) >= 60_000 {
		t.Errorf("page.html has %d bytes, want less than 60,000", len(source))
	}
	for _, pattern := range []string{
		`(?i)(src|href|action|poster|data)\s*=\s*["']?\s*(https?:)?//`, // elements
		`(?i)(\burl\(|@import)`, // style
		`(?i)(fetch|request|getJSON|import|open|sendBeacon|WebSocket|EventSource|Worker)\(\s*['"` + "`" + `]\s*([a-z]+:|/)`,
		`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc`,
		`(?i)<[^>]*\s(style|on[a-z]+)\s*=`, // the policy forbids them
	} {
		if found := regexp.MustCompile(pattern).Find(source); found != nil {
			t.Errorf("%q matches %s", found, pattern)
		}
	}
	for _, address := range regexp.MustCompile(`[a-z]+://[^\s"'<>]+`).FindAllString(string(source), -1) {
		if address != "http://www.w3.org/2000/svg" {
			t.Errorf("the page names %s", address)
		}
	}
}
