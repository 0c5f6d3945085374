package pagetest

import "testing"

// Drive uses the page at an address as a reader would, by the keyboard where that is possible: a prompt, text that
// streams, Escape, another answer, the device and its slots, a narrow window and a dark one. It holds for any server
// whose model has something to say, and that needs no key.
func Drive(t testing.TB, address string) {
	b := Start(t, address)
	b.Wait(`document.querySelector('#state.ready')`)
	b.Wait(`document.activeElement.id === 'prompt'`)

	b.Press("Tell a very long story about a volcano." + Enter)
	b.WaitText(".user", "volcano")
	b.Wait(`document.querySelector('.assistant .rich:not(:empty)')?.textContent`)
	b.Press(Escape)
	b.Wait(`document.querySelector('#send').innerText === 'Send'`)
	b.Check(`!document.querySelector('.problem:not([hidden])')`, `document.querySelectorAll('.assistant').length === 1`)

	limitAnswers(b, "24")
	b.Check(`document.querySelector('.assistant').id = 'first'`)
	b.ClickButton("Regenerate")
	b.Wait(`!document.querySelector('#first') && document.querySelector('#send').innerText === 'Send'`)
	b.Check(
		`!document.querySelector('.problem:not([hidden])')`,
		`/\d tokens? · .* tokens\/s · first token .* · prompt \d.* cached/.test(document.querySelector('.stats').textContent)`)
	b.Screenshot("chat")

	b.Click("#tab-device")
	b.Wait(`document.querySelectorAll('#slots tbody tr').length > 0`)
	b.WaitText("#queue", "0 of ") // the slot of the answer that was stopped is free
	b.Check(`document.querySelector('#device-facts dd')`, `document.querySelector('#model-facts dd')`)
	b.Screenshot("device")

	b.Resize(360, 740)
	b.CheckFits()
	b.Click("#tab-chat")
	b.CheckFits()
	b.Screenshot("narrow")

	light := Eval[string](b, `getComputedStyle(document.body).backgroundColor`)
	b.Prefer("dark")
	if dark := Eval[string](b, `getComputedStyle(document.body).backgroundColor`); dark == light {
		t.Errorf("the page is %s where dark is preferred, too", dark)
	}
	b.Resize(1200, 800)
	b.Screenshot("dark")
	b.CheckQuiet()
}

// limitAnswers sets the longest answer in the settings.
func limitAnswers(b *Browser, tokens string) {
	b.Click("#open-settings")
	b.Wait(`document.querySelector('#settings').open`)
	b.Click("#max_tokens")
	b.Press(tokens + Enter)
	b.Wait(`!document.querySelector('#settings').open`)
}
