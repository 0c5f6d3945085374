// Package pagetest drives the server's built-in page in a headless Chromium.
package pagetest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

const (
	lifetime = 60 * time.Second // of a browser, whatever happens
	patience = 20 * time.Second // for one condition
)

// Keys for Press.
const (
	Enter  = kb.Enter
	Escape = kb.Escape
	Tab    = kb.Tab
	Left   = kb.ArrowLeft
	Right  = kb.ArrowRight
)

// A Browser is a headless Chromium with one tab and storage of its own. What it cannot do fails the test.
type Browser struct {
	t      testing.TB
	ctx    context.Context
	origin string

	mu       sync.Mutex
	problems []string // errors on the console and uncaught exceptions
	strays   []string // requests to other origins
}

// Start opens url in a browser that lives as long as the test. It skips the test where there is no Chromium: neither
// $CALDERA_CHROMIUM nor one of its usual names in the path.
func Start(t testing.TB, address string) *Browser {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	b := &Browser{t: t, origin: u.Scheme + "://" + u.Host}

	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(chromium(t)),
		chromedp.NoSandbox, // containers rarely let root have one
		chromedp.DisableGPU,
		chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true),
		chromedp.WindowSize(1200, 800),
	)
	ctx, cancel := context.WithTimeout(context.Background(), lifetime)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx, chromedp.WithListener(b.listen), chromedp.WithErrorf(t.Logf))
	t.Cleanup(func() {
		chromedp.Cancel(ctx) // waits for Chromium to end
		cancel()
	})
	b.ctx = ctx
	b.do("open "+address, chromedp.Navigate(address))
	return b
}

func chromium(t testing.TB) string {
	for _, name := range []string{os.Getenv("CALDERA_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("no Chromium: install it (Debian's package is chromium) or name it in CALDERA_CHROMIUM")
	return ""
}

// listen notes what a quiet page of its own origin would not do.
func (b *Browser) listen(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.problems = append(b.problems, (&chromedp.ExceptionError{ExceptionDetails: e.ExceptionDetails}).Error())
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
			b.problems = append(b.problems, fmt.Sprintf("console.%s", e.Type))
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			b.problems = append(b.problems, e.Entry.Text+" "+e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		address := e.Request.URL
		if !strings.HasPrefix(address, b.origin+"/") && !strings.HasPrefix(address, "data:") && !strings.HasPrefix(address, "blob:"+b.origin) {
			b.strays = append(b.strays, address)
		}
	}
}

// CheckQuiet reports errors on the console, but for those that hold one of the texts expected, and requests that left
// the page's origin.
func (b *Browser) CheckQuiet(expected ...string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, problem := range b.problems {
		if !slices.ContainsFunc(expected, func(text string) bool { return strings.Contains(problem, text) }) {
			b.t.Errorf("on the console: %s", problem)
		}
	}
	for _, address := range b.strays {
		b.t.Errorf("a request to another origin: %s", address)
	}
}

// do runs actions, and fails the test if one fails or none ends.
func (b *Browser) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

// Wait waits until a JavaScript expression, or what it promises, is true, looking at every frame.
func (b *Browser) Wait(expression string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	look := fmt.Sprintf(`new Promise((done, fail) => {
		const look = async () => await (%s) ? done(true) : requestAnimationFrame(() => look().catch(fail));
		look().catch(fail);
	})`, expression)
	if _, err := chromedp.Run(ctx, chromedp.Evaluate[bool](look, chromedp.EvalAwaitPromise)); err != nil {
		b.t.Logf("the page says:\n%s", b.Text("body"))
		b.Screenshot("failed")
		b.t.Fatalf("waiting for %s: %v", expression, err)
	}
}

// WaitText waits until the text of the last element that a selector finds holds a text.
func (b *Browser) WaitText(selector, text string) {
	b.t.Helper()
	b.Wait(fmt.Sprintf(`[...document.querySelectorAll(%q)].at(-1)?.innerText.includes(%q)`, selector, text))
}

// Text is the visible text of the last element that a selector finds, or "".
func (b *Browser) Text(selector string) string {
	b.t.Helper()
	return Eval[string](b, fmt.Sprintf(`[...document.querySelectorAll(%q)].at(-1)?.innerText ?? ''`, selector))
}

// Eval is the value of a JavaScript expression.
func Eval[T any](b *Browser, expression string) T {
	b.t.Helper()
	value, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

// Check reports expressions that are not true.
func (b *Browser) Check(expressions ...string) {
	b.t.Helper()
	for _, expression := range expressions {
		if !Eval[bool](b, "Boolean("+expression+")") {
			b.t.Errorf("not so: %s", expression)
		}
	}
}

// Press presses keys, of which printable ones type themselves, in whatever has the focus.
func (b *Browser) Press(keys string) {
	b.t.Helper()
	b.press(keys, kb.ModifierNone)
}

// PressShift presses a key with Shift held.
func (b *Browser) PressShift(key string) {
	b.t.Helper()
	b.press(key, kb.ModifierShift)
}

// press sends a printable key's text with its keydown event, as browsers then drop the text when the page handles the
// event; chromedp.KeyEvent sends it in any case.
func (b *Browser) press(keys string, modifier kb.Modifier) {
	b.t.Helper()
	for _, r := range keys {
		events := kb.Encode(r)
		down, up := events[0], events[len(events)-1]
		if len(events) == 3 {
			down.Text, down.UnmodifiedText = events[1].Text, events[1].UnmodifiedText
		}
		for _, event := range []*input.DispatchKeyEventParams{down, up} {
			event.Modifiers |= int64(modifier)
			if _, err := chromedp.Call(b.ctx, input.DispatchKeyEvent, *event); err != nil {
				b.t.Fatalf("press %q: %v", r, err)
			}
		}
	}
}

// Click clicks on the last element that a selector finds, once it is there to see.
func (b *Browser) Click(selector string) {
	b.t.Helper()
	b.click(fmt.Sprintf(`[...document.querySelectorAll(%q)]`, selector))
}

// ClickButton clicks on the last button of that label, once it is there to see.
func (b *Browser) ClickButton(label string) {
	b.t.Helper()
	b.click(fmt.Sprintf(`[...document.querySelectorAll('button')].filter(node => node.innerText === %q)`, label))
}

func (b *Browser) click(nodes string) {
	b.t.Helper()
	b.Wait(nodes + `.filter(node => node.checkVisibility()).length`)
	at := Eval[[]float64](b, fmt.Sprintf(`(() => {
		const node = %s.filter(node => node.checkVisibility()).at(-1);
		node.scrollIntoView({block: 'nearest'});
		const box = node.getBoundingClientRect();
		return [box.x + box.width / 2, box.y + box.height / 2];
	})()`, nodes))
	b.do("click on "+nodes, chromedp.MouseClickXY(at[0], at[1]))
}

// Reload loads the page again, once a text is among the chats that it has stored.
func (b *Browser) Reload(stored string) {
	b.t.Helper()
	b.Wait(fmt.Sprintf(`new Promise((done, fail) => {
		const open = indexedDB.open('caldera');
		open.onerror = () => fail(open.error);
		open.onsuccess = () => {
			const all = open.result.transaction('chats').objectStore('chats').getAll();
			all.onsuccess = () => done(JSON.stringify(all.result).includes(%q));
			open.result.close();
		};
	})`, stored))
	b.do("reload", chromedp.Reload())
}

// Resize gives the page a size in CSS pixels.
func (b *Browser) Resize(width, height int64) {
	b.t.Helper()
	b.do("resize", chromedp.EmulateViewport(width, height))
	b.Wait(fmt.Sprintf("innerWidth === %d", width))
}

// Prefer sets the colour scheme that the reader prefers, dark or light.
func (b *Browser) Prefer(scheme string) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.Wait(fmt.Sprintf(`matchMedia('(prefers-color-scheme: %s)').matches`, scheme))
}

// CheckFits reports content that is wider than the window.
func (b *Browser) CheckFits() {
	b.t.Helper()
	wide := Eval[[]string](b, `[...document.querySelectorAll('body, body *')]
		.filter(node => node.checkVisibility() && !node.closest('.scroll, pre, .unseen, .skip'))
		.filter(node => node.getBoundingClientRect().right > innerWidth + .5)
		.map(node => node.outerHTML.slice(0, 80))`)
	if len(wide) > 0 || !Eval[bool](b, `document.documentElement.scrollWidth <= innerWidth`) {
		b.t.Errorf("wider than the window: %q", wide)
	}
}

// Screenshot keeps a picture of the page as name.png in the folder that $CALDERA_ARTIFACTS names, or else in the
// test's artifact folder (see go test -artifacts).
func (b *Browser) Screenshot(name string) {
	b.t.Helper()
	shot, err := chromedp.Call(b.ctx, page.CaptureScreenshot, page.CaptureScreenshotParams{})
	if err != nil {
		b.t.Errorf("screenshot: %v", err)
		return
	}
	dir := os.Getenv("CALDERA_ARTIFACTS")
	if dir == "" {
		dir = b.t.ArtifactDir()
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		b.t.Error(err)
		return
	}
	file := filepath.Join(dir, strings.ReplaceAll(b.t.Name(), "/", "-")+"-"+name+".png")
	if err := os.WriteFile(file, shot.Data, 0o666); err != nil {
		b.t.Error(err)
	}
}
