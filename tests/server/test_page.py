"""The page at / in a headless Chromium, against the bundled model. Skipped without chromium and websocket-client;
`./dev test --clients` installs both. TANDEM_SCREENSHOTS=FOLDER keeps pictures."""

import glob
import json
import os
import tempfile
import unittest

import browser
import server_process
import test_tools
from server_process import Server

# Everything that a browser might run or load if model text were taken for markup.
HOSTILE = """<img src=x onerror="window.hit=1"><script>window.hit=1</script> **b<b>** `<i>` [go](javascript:window.hit=1)
[data](data:text/html,<script>window.hit=1</script>) [ok](https://example.org/a?b=1) ![p](https://example.org/p.png)

| a | <img src=x onerror=window.hit=1> |
|---|---|
| 1 | [x](JaVaScRiPt:window.hit=1) |

<iframe src="https://example.org"></iframe> <svg onload=window.hit=1> <style>*{display:none}</style>

```html"><img src=x onerror=window.hit=1>
<script>window.hit=1</script>
```
"""

MARKDOWN = """# Title
Some *words* and **more**, `code` and
a second line.

1. one
   - in it
   - again
2. two

> quoted

```python
def f(x):
    return x * 2
```

| n | square |
|---|---|
| 2 | 4 |
"""


@unittest.skipIf(browser.MISSING, f"{browser.MISSING} is not there")
class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-model-len", "8192", "--api-key", "secret")
        cls.url = f"http://127.0.0.1:{cls.server.port}/"

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()

    def setUp(self):
        self.browser = self.enterContext(browser.Browser())
        self.browser.open(self.url)

    def give_key(self):
        self.browser.until("document.querySelector('#dialog').open")
        self.browser.until("document.activeElement.id === 'key'")
        self.browser.type("secret")
        self.browser.click("#s-temperature")
        self.browser.run("document.querySelector('#s-temperature').focus()")
        self.browser.type("0")
        self.browser.click("#form .primary")
        self.browser.until("models.size > 0")

    def ask(self, text, wait=True):
        self.browser.run("document.querySelector('#input').focus()")
        self.browser.type(text)
        self.browser.enter()
        if wait:
            self.browser.until("!running && chat.messages.at(-1).role === 'assistant'")

    def text(self, selector):
        return self.browser.run(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.innerText)")

    def no_problems(self, but=()):
        self.browser.run("0")
        self.assertEqual([p for p in self.browser.problems if not any(word in p for word in but)], [])

    def test_a_conversation(self):
        page = self.browser
        page.picture("key")
        self.give_key()
        page.picture("start-light")
        self.ask("What is 347 + 286?")
        self.assertIn("633", self.text(".msg.assistant")[-1])
        self.assertEqual(self.text(".msg.user .body"), ["What is 347 + 286?"])
        self.assertTrue(page.run("document.querySelector('#f-ttft').innerText.endsWith('ms')"))
        self.assertTrue(page.run("parseFloat(document.querySelector('#f-rate').innerText) > 0"))
        # The reasoning is folded away, and opens.
        self.assertFalse(page.run("document.querySelector('details.think').open"))
        self.assertTrue(page.run("document.querySelector('details.think .md').textContent.length > 10"))
        page.click("details.think summary")
        self.assertTrue(page.run("document.querySelector('details.think').open"))
        self.ask("Repeat this code: AB12-CD34")
        self.assertGreater(page.run("chat.messages.at(-1).stats.cached"), 0)
        self.assertIn("cached", self.text(".stats")[-1])
        self.assertIn("Reply", page.run("document.querySelector('#say').textContent"))
        page.picture("chat-light")
        # Written again: the same question, one reply.
        page.click(".msg.assistant:last-child button[title='Write it again']")
        page.until("!running && chat.messages.length === 4 && chat.messages[3].finish")
        # An edited question cuts what came after it.
        page.click(".msg.user button[title='Edit and send again']")
        page.run("document.querySelector('.edit textarea').select()")
        page.type("What is 12 + 30?")
        page.enter()
        page.until("!running && chat.messages.length === 2 && chat.messages[1].finish")
        self.assertIn("42", self.text(".msg.assistant")[-1])
        # All of it is there after a reload.
        page.until("in_store('readonly', s => s.count()).then(n => n === 1)")
        page.open(self.url)
        page.until("document.querySelectorAll('#chats .open').length === 1")
        page.click("#chats .open")
        self.assertEqual(self.text(".msg.user .body"), ["What is 12 + 30?"])
        self.no_problems(but=["401"])

    def test_stopping(self):
        page = self.browser
        self.give_key()
        for stop in (lambda: page.key("Escape", number=27), lambda: page.click("#send")):
            page.run("show(fresh())")
            page.run("settings.sampling.min_tokens = 4000")
            self.ask("Tell me a story about a clever fox and Nora who look for a ring in a castle.", wait=False)
            page.until("running && running.message.stats.tokens > 20")
            self.assertEqual(page.run("document.querySelector('#send').ariaLabel"), "Stop")
            stop()
            page.until("!running")
            self.assertTrue(page.run("chat.messages[1].stopped && chat.messages[1].finish === undefined"))
            self.server.wait_for_load(0, 0)
            self.assertEqual(page.run("document.querySelector('#send').ariaLabel"), "Send")
        self.no_problems(but=["401"])

    def test_tools(self):
        page = self.browser
        self.give_key()
        skill = next(s for s in test_tools.tool_skills("tool_call") if len(s["messages"]) <= 2)
        system = [m["content"] for m in skill["messages"] if m["role"] == "system"]
        page.run(f"settings.tools = {json.dumps(json.dumps(skill['tools']))}; settings.system = {json.dumps(system[0] if system else '')}")
        page.run(f"settings.effort = {json.dumps(skill['reasoning_effort'])}")
        self.ask(skill["messages"][-1]["content"])
        name, arguments = test_tools.expected_calls(skill)[0]
        self.assertEqual(self.text(".call .head")[0], name)
        self.assertEqual(json.loads(self.text(".call pre")[0]), arguments)
        page.run("document.querySelector('.call textarea').focus()")
        page.type('{"ok": true}')
        page.picture("tools-light")
        page.run("document.querySelector('.call + .primary').click()")
        page.until("!running && chat.messages.length === 4 && chat.messages[3].finish")
        self.assertTrue(page.run("chat.messages[3].content.length > 0"))
        self.assertEqual(page.run("chat.messages[2].tool_call_id"), page.run("chat.messages[1].calls[0].id"))
        self.no_problems(but=["401"])

    def test_model_text_is_never_markup(self):
        page = self.browser
        page.run(f"window.box = el('div'); document.body.append(box); markdown(box, {json.dumps(HOSTILE)})")
        found = page.run("[...new Set([...box.querySelectorAll('*')].map(e => e.localName))].sort()")
        self.assertLessEqual(set(found), {"a", "br", "button", "code", "div", "pre", "span", "strong", "p", "table", "tbody", "td", "th", "thead", "tr"})
        addresses = page.run("[...box.querySelectorAll('a')].map(a => a.protocol)")
        self.assertTrue(addresses)
        self.assertEqual(set(addresses), {"https:"})
        # Whatever the pieces in which it grows.
        page.run(f"window.grow_ = new Growing(); box.append(grow_.root); const t = {json.dumps(HOSTILE)}; for (let i = 0; i <= t.length; i++) grow_.set(t.slice(0, i))")
        self.assertEqual(page.run("grow_.root.innerHTML"), page.run("(() => { const d = el('div'); markdown(d, t); return d.innerHTML; })()"))
        self.assertIsNone(page.run("window.hit"))
        # Nothing takes long on texts that a looping model writes.
        for text in ("`" * 20000, "*" * 20000, "**a " * 5000, "[" * 20000, "> " * 10000, "- " * 10000, "_a" * 10000, "|" * 20000, "`a" * 10000):
            took = page.run(f"(() => {{ const b = performance.now(); markdown(el('div'), {json.dumps(text)}); return performance.now() - b; }})()")
            self.assertLess(took, 2000, text[:10])

    def test_markdown(self):
        page = self.browser
        page.run(f"window.box = el('div'); document.body.append(box); markdown(box, {json.dumps(MARKDOWN)})")
        self.assertEqual(page.run("[...box.children].map(e => e.localName)"), ["h2", "p", "ol", "blockquote", "div", "div"])
        self.assertEqual(page.run("box.children[1].innerHTML"), "Some <em>words</em> and <strong>more</strong>, <code>code</code> and<br>a second line.")
        self.assertEqual(page.run("[...box.querySelectorAll('ol > li > ul > li')].map(e => e.textContent)"), ["in it", "again"])
        self.assertEqual(page.run("box.querySelectorAll('ol > li').length"), 2)
        self.assertEqual(page.run("box.querySelector('pre').textContent"), "def f(x):\n    return x * 2")
        self.assertEqual(page.run("[...box.querySelectorAll('td')].map(e => e.textContent)"), ["2", "4"])

    def test_export_and_import(self):
        page = self.browser
        self.give_key()
        self.ask("What is 12 + 30?")
        with tempfile.TemporaryDirectory() as folder:
            page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=folder)
            page.click("#export")
            [file] = page.wait(lambda: glob.glob(os.path.join(folder, "*.json")))
            page.wait(lambda: os.path.getsize(file) > 0)
            with open(file, encoding="utf-8") as opened:
                exported = opened.read()
        self.assertEqual(json.loads(exported)["chats"][0]["messages"][0]["content"], "What is 12 + 30?")
        page.click("#chats .on [title='Delete']")
        page.until("document.querySelectorAll('#chats .open').length === 0")
        self.assertEqual(page.run(f"import_chats({json.dumps(exported)})"), 1)
        page.click("#chats .open")
        self.assertIn("42", self.text(".msg.assistant")[-1])
        for bad in ("{}", "[]", '{"schema":"tandem.chats/1","chats":[{"id":"a","title":"b","messages":[{"role":"system","content":"x"}]}]}'):
            self.assertEqual(page.run(f"import_chats({json.dumps(bad)}).then(() => 'taken', () => 'refused')"), "refused")
        self.no_problems(but=["401"])

    def test_errors_are_shown(self):
        page = self.browser
        self.give_key()
        page.run("settings.sampling.temperature = 9")
        self.ask("Hello")
        self.assertIn("temperature", self.text(".error")[0])
        page.run("settings.sampling.temperature = 0")
        page.click(".error button")
        page.until("!running && chat.messages.length === 2 && chat.messages[1].finish")
        self.no_problems(but=["401", "400"])

    def test_keyboard(self):
        page = self.browser
        self.give_key()
        self.ask("What is 12 + 30?")
        page.run("document.querySelector('#input').focus()")
        page.key("ArrowUp", number=38)
        self.assertEqual(page.run("document.activeElement.value"), "What is 12 + 30?")
        page.key("Escape", number=27)
        self.assertEqual(page.run("document.activeElement.id"), "input")
        page.key("n", code="KeyN", number=78, modifiers=1)
        self.assertEqual(page.run("chat.messages.length"), 0)
        # From the top, the tabulator reaches the message box, and focus is visible on the way.
        page.run("document.activeElement.blur(); document.querySelector('.skip').focus()")
        for _ in range(40):
            page.key("Tab", number=9)
            self.assertNotEqual(page.run("getComputedStyle(document.activeElement).outlineStyle") == "none", page.run("document.activeElement.id !== 'input'"))
            if page.run("document.activeElement.id") == "input":
                break
        self.assertEqual(page.run("document.activeElement.id"), "input")

    def test_names_and_contrast(self):
        page = self.browser
        self.give_key()
        self.ask("What is 12 + 30?")
        tree = page.call("Accessibility.getFullAXTree")["nodes"]
        of_role = lambda *roles: [n for n in tree if not n["ignored"] and n["role"]["value"] in roles]
        controls = of_role("button", "textbox", "combobox", "link", "checkbox", "meter", "dialog")
        self.assertGreater(len(controls), 15)
        self.assertEqual([n for n in controls if not n["name"]["value"]], [])
        self.assertTrue(of_role("log"))
        measure = """(() => {
          const rgb = (name) => { const p = el('i'); document.body.append(p); p.style.color = `var(--${name})`;
            const c = getComputedStyle(p).color.match(/[\\d.]+/g).map(Number); p.remove(); return c; };
          const light = (name) => { const [r, g, b] = rgb(name).map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
            return .2126 * r + .7152 * g + .0722 * b; };
          return [['text','bg'],['text','side'],['text','bubble'],['text','code'],['dim','bg'],['dim','side'],['dim','raised'],['dim','soft'],['accent','raised'],
            ['on-accent','accent'],['accent-2','bg'],['bad','bad-soft']].map(([a, b]) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
            return [a, b, (x + .05) / (y + .05)]; }); })()"""
        for scheme in ("light", "dark"):
            page.scheme(scheme)
            for text, ground, contrast in page.run(measure):
                self.assertGreaterEqual(contrast, 4.5, (scheme, text, ground))

    def test_sizes_and_schemes(self):
        page = self.browser
        self.give_key()
        page.scheme("dark")
        page.picture("start-dark")
        self.ask("What is 347 + 286?")
        sample = {"role": "assistant", "content": MARKDOWN, "reasoning": "Thoughts.", "calls": [], "stats": {}, "finish": "stop"}
        page.run(f"chat.messages.push({{role: 'user', content: 'Show me everything'}}, {json.dumps(sample)}); draw(true)")
        page.picture("text-dark")
        page.scheme("light")
        page.picture("text-light")
        for width, height, phone in ((1360, 860, False), (900, 700, False), (390, 844, True), (320, 568, True)):
            page.size(width, height, phone)
            page.until(f"innerWidth === {width}")
            self.assertLessEqual(page.run("document.documentElement.scrollWidth"), width)
            self.assertEqual(page.run("[...document.querySelectorAll('main, header, .bottom, #log > *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.className || e.id)"), [])
            page.run("show_live(innerWidth > 1080)")
            page.picture(f"text-{width}")
        page.size(390, 844, True)
        page.click("#menu")
        page.until("getComputedStyle(document.querySelector('#side')).visibility === 'visible'")
        page.run("new Promise(done => setTimeout(done, 300))")
        page.picture("drawer-390")
        page.key("Escape", number=27)
        page.click("#show-live")
        page.picture("live-390")
        page.click("#hide-live")
        page.scheme("dark")
        page.picture("text-390-dark")
        page.click("#settings-2")
        page.picture("settings-390-dark")
        self.no_problems(but=["401"])


if __name__ == "__main__":
    server_process.main()
