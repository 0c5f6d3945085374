package page_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/calderaml/caldera/server/page"
	"github.com/calderaml/caldera/server/page/pagetest"
)

const (
	idle    = `document.querySelector('#send').innerText === 'Send'`
	running = `document.querySelector('#send').innerText === 'Stop'`
)

// open opens the page of a fake and waits until it can be used.
func open(t *testing.T, f *fake) *pagetest.Browser {
	t.Helper()
	b := pagetest.Start(t, f.URL)
	b.Wait(`document.querySelector('#state.ready')`)
	return b
}

func TestDrive(t *testing.T) {
	f := newFake(t)
	f.auto = true
	pagetest.Drive(t, f.URL)
}

const hostile = `<img src=x onerror="document.title='owned'"> <script>document.title='owned'</script> ` +
	`[here](javascript:document.title='owned') ![image](https://elsewhere.example/x.png) [there](https://elsewhere.example/a_(b))`

const markdown = "# Calderas\n\nA **caldera** is a *large* `hollow`, see https://elsewhere.example/wiki.\nSecond line, snake_case_name, 2 * 3 * 4.\n\n" +
	"- one\n- two\n  1. inner\n  2. more\n\n> quoted\n\n| name | km |\n|:-----|---:|\n| La Garita | 75 |\n| Toba `a\\|b` | 100 |\n\n" +
	"```go\nfunc main() {\n\tprintln(\"<b>\")\n}\n```\n\n"

// An answer streams: progress, thoughts that fold when the answer starts, Markdown, and hostile text that stays text.
func TestStream(t *testing.T) {
	f := newFake(t)
	b := open(t, f)
	b.Check(`document.title === 'Caldera'`, `document.querySelector('#state').innerText === 'Ember-4B-Q4_K_M'`)

	b.Press("What is a caldera?" + pagetest.Enter)
	x := f.next(t)
	if r := x.request; r.Model != "Ember-4B-Q4_K_M" || !r.Stream || r.StreamOptions["include_usage"] != true || !r.ReturnProgress ||
		r.Template["enable_thinking"] != true || r.Temperature != nil || len(r.Messages) != 1 || r.Messages[0].Content != "What is a caldera?" {
		t.Errorf("the page asks %+v", r)
	}
	b.Wait(running)
	x.write(": ping\n\n")
	x.event(object{"choices": []object{}, "prompt_progress": object{"total": 1204, "cache": 1100, "processed": 1152, "time_ms": 90}})
	b.WaitText(".waiting", "Reading the prompt: 1,152 of 1,204 tokens, 1,100 cached")
	b.Check(`document.querySelector('.waiting progress').value === 1152`)

	// Split within an event, and within a character.
	x.write("data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n")
	x.write("\ndata: {\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"Let me think \xe2\x80")
	x.write("\x94 they asked\"}}]}\r\n\r\n")
	b.WaitText("details.thinking", "Let me think — they asked")
	b.Check(`document.querySelector('details.thinking').open`, running, `document.querySelector('article.assistant').ariaBusy === 'true'`)
	b.Screenshot("thinking")

	x.say("First words")
	b.WaitText("article.assistant", "First words")
	b.Check(`!document.querySelector('details.thinking').open`, running)

	x.say(", then more.\n\n" + markdown)
	b.Wait(`document.querySelector('.code')`)
	b.Check(
		running,
		`document.querySelector('.assistant h3').innerText === 'Calderas'`,
		`document.querySelector('.assistant strong').innerText === 'caldera'`,
		`document.querySelector('.assistant em').innerText === 'large'`,
		`document.querySelectorAll('.assistant em').length === 1`,
		`document.querySelector('.assistant p code').innerText === 'hollow'`,
		`document.querySelectorAll('.assistant ul > li').length === 2 && document.querySelectorAll('.assistant ul ol > li').length === 2`,
		`document.querySelector('.assistant blockquote').innerText === 'quoted'`,
		`document.querySelectorAll('.assistant tbody tr').length === 2 && document.querySelector('.assistant td.right').innerText === '75'`,
		`document.querySelector('.assistant td code').innerText === 'a|b'`,
		`document.querySelector('.code code').textContent === 'func main() {\n    println("<b>")\n}'`,
		`document.querySelector('.code figcaption').innerText.startsWith('go')`)

	x.say(hostile)
	b.WaitText("article.assistant", "onerror")
	b.WaitText("article.assistant", "<script>document.title='owned'</script>")
	b.Check(
		`!document.querySelector('#log img, #log script')`,
		`document.title === 'Caldera'`,
		`[...document.querySelectorAll('#log a')].every(a => a.protocol === 'https:' && a.relList.contains('noopener'))`,
		`document.querySelectorAll('#log a').length === 3`, // the address, the image and the last link
		`document.querySelector('#log a[href="https://elsewhere.example/a_(b)"]')`)

	x.end("stop", 184)
	b.Wait(idle)
	b.Check(
		`document.querySelector('.stats').innerText.startsWith('184 tokens · 42.5 tokens/s · first token ')`,
		`document.querySelector('.stats').innerText.endsWith(' · prompt 1,204, 1,100 cached')`,
		`document.querySelector('article.assistant').ariaBusy === 'false'`,
		`document.querySelector('#announcer').innerText.includes('complete, 184 tokens')`,
		`document.querySelector('details.thinking summary').innerText.startsWith('Thought for')`)
	b.Screenshot("answer")
	b.Prefer("dark")
	b.Screenshot("answer-dark")
	b.Resize(360, 740)
	b.CheckFits()
	b.Screenshot("answer-narrow")

	b.Press("Go on" + pagetest.Enter)
	x = f.next(t)
	if m := x.request.Messages; len(m) != 3 || m[1].Role != "assistant" || m[1].ReasoningContent != "Let me think — they asked" || !strings.HasPrefix(m[1].Content, "First words, then") {
		t.Errorf("the page sends the conversation as %+v", m)
	}
	x.end("stop", 0)
	b.Wait(idle)
	b.CheckQuiet()
}

// Escape and the button stop an answer and its request; an answer can be asked for again, and a prompt be edited. The
// chat is there after the page was loaded again.
func TestStop(t *testing.T) {
	f := newFake(t)
	b := open(t, f)
	b.Press("Count to a million" + pagetest.Enter)
	x := f.next(t)
	x.say("One, two")
	b.WaitText("article.assistant", "One, two")
	b.Press(pagetest.Escape)
	x.left()
	b.Wait(idle)
	b.WaitText("article .note", "Stopped.")
	b.Check(`document.activeElement.id === 'prompt'`)

	b.ClickButton("Regenerate")
	x = f.next(t)
	if m := x.request.Messages; len(m) != 1 || m[0].Content != "Count to a million" {
		t.Errorf("for another answer the page sends %+v", m)
	}
	x.say("Uno, dos")
	b.WaitText("article.assistant", "Uno, dos")
	b.Check(`document.querySelectorAll('article').length === 2`)
	b.ClickButton("Stop")
	x.left()
	b.Wait(idle)

	b.ClickButton("Edit")
	b.Wait(`document.activeElement.matches('.edit textarea')`)
	b.Press(" in French" + pagetest.Enter)
	x = f.next(t)
	if m := x.request.Messages; len(m) != 1 || m[0].Content != "Count to a million in French" {
		t.Errorf("after the edit the page sends %+v", m)
	}
	x.say("Un, deux")
	x.end("length", 5)
	b.Wait(idle)
	b.WaitText("article .note", "longest length")

	b.Reload("Un, deux")
	b.Wait(`document.querySelector('#state.ready')`)
	b.ClickButton("Count to a million")
	b.WaitText("article.assistant", "Un, deux")
	b.WaitText("article.user", "in French")
	b.Check(`document.querySelectorAll('article').length === 2`, `document.querySelector('#chat-list [aria-current]')`)
	b.CheckQuiet()
}

// The device view shows slots as they change, the queue, memory, and the errors that the page has seen.
func TestDevice(t *testing.T) {
	f := newFake(t)
	f.queue = 3
	f.slots = []object{slot(0, "decode", 1204, 1204, 1100, 57), slot(1, "prefill", 8000, 2000, 0, 0), slot(2, "idle", 0, 0, 0, 0)}
	b := open(t, f)
	b.Press("Hello" + pagetest.Enter)
	x := f.next(t)
	x.say("Well")
	x.event(object{"error": object{"message": "The device was lost.", "type": "unavailable_error"}})
	x.close()
	b.WaitText(".problem", "The device was lost.")
	b.WaitText("article.assistant", "Well")
	b.Wait(idle)

	b.Click("#tab-device")
	b.WaitText("#queue", "2 of 3 busy, 3 requests waiting")
	rows := pageRows(b)
	want := [][]string{
		{"0", "decode", "1,204", "1,100", "57", "16,384"},
		{"1", "prefill", "2,000 of 8,000", "0", "0", "16,384"},
		{"2", "idle", "–", "0", "–", "16,384"},
	}
	if a, b := asJSON(rows), asJSON(want); a != b {
		t.Errorf("slots\n%s, want\n%s", a, b)
	}
	b.Check(
		`document.querySelector('#slots progress').value === 2000`,
		`document.querySelector('#device-facts').innerText.includes('Obsidian X1')`,
		`document.querySelector('#model-facts').innerText.includes('Q4_K_M')`,
		`document.querySelector('#memory').innerText.includes('6.1 GiB of 8.0 GiB used, 1.9 GiB free')`,
		`document.querySelectorAll('#memory meter').length === 2`,
		`document.querySelector('#errors').innerText.includes('Chat: The device was lost.')`)
	b.Resize(1200, 1000)
	b.Screenshot("device")
	b.Prefer("dark")
	b.Screenshot("device-dark")
	b.Resize(360, 740)
	b.CheckFits()
	b.Screenshot("device-narrow")

	f.set(func() { f.slots, f.queue = []object{slot(0, "idle", 0, 0, 0, 0)}, 0 })
	b.WaitText("#queue", "0 of 1 busy, no request waiting")
	b.Click("#tab-chat")
	b.ClickButton("Try again")
	x = f.next(t)
	x.say("All is well")
	x.close() // without an end
	b.WaitText(".problem", "ended before the answer did")
	b.CheckQuiet()
}

func pageRows(b *pagetest.Browser) [][]string {
	return pagetest.Eval[[][]string](b, `[...document.querySelectorAll('#slots tbody tr')].map(row => [...row.cells].map(cell => cell.innerText.trim()))`)
}

func asJSON(v any) string {
	data, _ := json.Marshal(v)
	return string(data)
}

// All can be done by keyboard.
func TestKeyboard(t *testing.T) {
	f := newFake(t)
	b := open(t, f)
	focused := func() string {
		return pagetest.Eval[string](b, `document.activeElement.id || document.activeElement.innerText`)
	}
	b.Check(`document.activeElement.id === 'prompt'`)
	b.Press("one")
	b.PressShift(pagetest.Enter)
	b.Press("two")
	b.Check(`document.querySelector('#prompt').value === 'one\ntwo'`, idle)
	b.Press(pagetest.Enter)
	x := f.next(t)
	if m := x.request.Messages; len(m) != 1 || m[0].Content != "one\ntwo" {
		t.Errorf("the page sends %+v", m)
	}
	b.Check(`document.activeElement.id === 'prompt'`, `document.querySelector('#prompt').value === ''`)
	x.say("Done")
	x.end("stop", 1)
	b.Wait(idle)

	// From the top of the page: every control once, in the order in which they are seen.
	b.Reload("Done")
	b.Wait(`document.querySelector('#state.ready') && document.querySelector('#chat-list button')`)
	b.Wait(`document.activeElement.id === 'prompt'`)
	pagetest.Eval[bool](b, `(document.querySelector('.skip').focus(), true)`)
	order := []string{focused()}
	for range 11 {
		b.Press(pagetest.Tab)
		order = append(order, focused())
	}
	want := "Skip to the message box,tab-chat,open-settings,new-chat,one,Delete,export,import,log,prompt,think,send"
	if got := strings.Join(order, ","); got != want {
		t.Errorf("the focus goes\n%s, want\n%s", got, want)
	}
	b.Check(`[...document.querySelectorAll('button, input, textarea')].every(node =>
		node.innerText || node.ariaLabel || node.labels?.length)`)

	pagetest.Eval[bool](b, `(document.querySelector('.skip').focus(), true)`)
	b.Press(pagetest.Enter)
	b.Wait(`document.activeElement.id === 'prompt'`)

	pagetest.Eval[bool](b, `(document.querySelector('#tab-chat').focus(), true)`)
	b.Press(pagetest.Right)
	b.Wait(`document.activeElement.id === 'tab-device' && document.querySelector('#device').checkVisibility()`)
	b.Wait(`document.querySelectorAll('#slots tbody tr').length === 2`)
	b.Press(pagetest.Left)
	b.Wait(`document.activeElement.id === 'tab-chat' && document.querySelector('#prompt').checkVisibility()`)

	// Settings take effect, and nothing is sent that was not set.
	b.Press(pagetest.Tab + pagetest.Enter)
	b.Wait(`document.querySelector('#settings').open && document.activeElement.id === 'system'`)
	b.Check(`document.querySelector('#temperature').placeholder === '0.7'`)
	b.Press("Be brief" + pagetest.Tab + "0.25")
	b.Screenshot("settings")
	b.Press(pagetest.Escape)
	b.Wait(`!document.querySelector('#settings').open && document.activeElement.id === 'open-settings'`)
	b.Click("#think")
	b.Click("#prompt")
	b.Press("three" + pagetest.Enter)
	x = f.next(t)
	if r := x.request; r.Temperature == nil || *r.Temperature != 0.25 || r.MaxTokens != 0 || r.Template["enable_thinking"] != false ||
		len(r.Messages) != 2 || r.Messages[0].Role != "system" || r.Messages[0].Content != "Be brief" {
		t.Errorf("with settings the page asks %+v", r)
	}
	x.end("stop", 0)
	b.Wait(idle)

	// The drawer of a narrow window.
	b.Resize(360, 740)
	b.Check(`!document.querySelector('nav').checkVisibility()`)
	pagetest.Eval[bool](b, `(document.querySelector('#show-chats').focus(), true)`)
	b.Press(pagetest.Enter)
	b.Wait(`document.activeElement.id === 'new-chat'`)
	b.CheckFits()
	b.Screenshot("drawer")
	b.Press(pagetest.Escape)
	b.Wait(`!document.querySelector('nav').checkVisibility() && document.activeElement.id === 'show-chats'`)
	b.CheckQuiet()
}

// A key is asked for once, again if it is wrong, and sent with every request of the tab. A server that still loads its
// model is waited for.
func TestKey(t *testing.T) {
	f := newFake(t)
	f.key, f.loading = "secret", true
	b := pagetest.Start(t, f.URL)
	b.WaitText("#state", "Loading the model")
	f.set(func() { f.loading = false })
	b.Wait(`document.querySelector('#key-dialog').open && document.activeElement.id === 'key'`)
	b.Press("wrong" + pagetest.Enter)
	b.WaitText("#key-dialog h2", "not accepted")
	b.Screenshot("key")
	b.Press("secret" + pagetest.Enter)
	b.Wait(`document.querySelector('#state.ready')`)
	b.Check(`!document.querySelector('dialog[open]')`, `!JSON.stringify(localStorage).includes('secret')`)
	b.Reload("")
	b.Wait(`document.querySelector('#state.ready')`)
	b.Check(`!document.querySelector('dialog[open]')`)
	b.CheckQuiet("status of 401", "status of 503")
}

// Chats are exported and imported; of a file's chats, only what the page would have written itself is taken.
func TestExport(t *testing.T) {
	f := newFake(t)
	b := open(t, f)
	b.Press("Remember" + pagetest.Enter)
	x := f.next(t)
	x.say("I shall")
	x.end("stop", 2)
	b.Wait(idle)
	pagetest.Eval[bool](b, `(() => {
		URL.createObjectURL = blob => (blob.text().then(text => globalThis.exported = text), '');
		HTMLAnchorElement.prototype.click = () => {};
		return true;
	})()`)
	b.ClickButton("Export")
	b.Wait(`globalThis.exported`)
	b.Check(`JSON.parse(exported).chats.length === 1`, `JSON.parse(exported).chats[0].messages[1].content === 'I shall'`)

	const file = `{"version": 1, "chats": [{"id": "a", "title": "<b>Old</b>", "changed": 1, "extra": 1, "messages": [
		{"role": "user", "content": "Hi"}, {"role": "system", "content": "<i>Hello</i>", "error": "x"}]}]}`
	pagetest.Eval[bool](b, `(() => {
		const files = new DataTransfer();
		files.items.add(new File([`+asJSON(file)+`], 'chats.json'));
		const input = document.querySelector('#import-file');
		input.files = files.files;
		return input.dispatchEvent(new Event('change'));
	})()`)
	b.WaitText("article.assistant", "<i>Hello</i>")
	b.Check(`!document.querySelector('#log .problem:not([hidden])')`, `document.querySelectorAll('#chat-list li').length === 2`)
	b.Reload("<i>Hello</i>")
	b.ClickButton("<b>Old</b>")
	b.WaitText("article.assistant", "<i>Hello</i>")
	b.CheckQuiet()
}

// A server that says little about itself will do.
func TestBareServer(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("/", page.Handler())
	for _, path := range []string{"/health", "/v1/models"} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) { reply(w, http.StatusOK, object{}) })
	}
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusTooManyRequests, "The queue is full; try again later.")
	})
	s := httptest.NewServer(mux)
	defer s.Close()
	b := pagetest.Start(t, s.URL)
	b.Wait(`document.querySelector('#state.ready')`)
	b.Check(`!document.querySelector('#think').checkVisibility()`)
	b.Press("Hello" + pagetest.Enter)
	b.WaitText(".problem", "The queue is full; try again later.")
	b.Click("#tab-device")
	b.WaitText("#queue", "cannot be shown now")
	b.WaitText("#errors", "Chat: The queue is full; try again later. (429)")
	b.CheckQuiet("status of 404", "status of 429")
}

// No text makes the page slow: what would be quadratic or deeper is bounded.
func TestHostileText(t *testing.T) {
	f := newFake(t)
	b := open(t, f)
	b.Press("Hang" + pagetest.Enter)
	x := f.next(t)
	const n = 30_000
	for _, text := range []string{"*", "**a ", "_a", "`a``", "[", "[a](", "~~a ", ">", "> ", "- ", "  - a\n", "|", "|a\n|-\n", "<br", "https://", "\\", "1. ", "#", "```\n", " "} {
		x.say("\n\n" + strings.Repeat(text, n/len(text)))
	}
	x.say("\n\nsurvived")
	x.end("stop", 1)
	b.WaitText("article.assistant", "survived")
	b.Wait(idle)
	b.CheckQuiet()
}
