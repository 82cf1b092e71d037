// ---- Messages on the page ----
const log = $("log"), scroll = $("scroll");
const at_end = () => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 90;
const to_end = () => { scroll.scrollTop = scroll.scrollHeight; };
scroll.addEventListener("scroll", () => { $("latest").hidden = at_end(); });
$("latest").onclick = to_end;

function draw(down) {
  $("hello").hidden = chat.messages.length > 0;
  log.replaceChildren();
  chat.messages.forEach((message, i) => log.append(node_of(message, i)));
  if (down) to_end();
  ready();
}
function node_of(message, i) {
  if (message.role === "user") return user_node(message, i);
  if (message.role === "tool") return el("article", {class: "msg tool", "aria-label": "Result of a tool"}, el("div", {class: "name", text: "Result of " + (message.name || "the tool")}), el("div", {class: "body", text: message.content, tabindex: "0"}));
  const view = running && running.message === message ? running.view : new ReplyView(message, i);
  view.update();
  return view.root;
}
function user_node(message, i) {
  const root = el("article", {class: "msg user", "aria-label": "You"});
  const acts = el("div", {class: "acts"}, button("copy", "Copy", () => copy(message.content)), button("edit", "Edit and send again", () => edit(root, message, i)));
  root.append(el("div", {class: "body", text: message.content}), acts);
  return root;
}
function edit(root, message, i) {
  const area = el("textarea", {"aria-label": "Edit your message"});
  area.value = message.content;
  const back = () => root.replaceWith(user_node(message, i));
  const send = () => {
    if (!area.value.trim()) return;
    if (running) running.stop.abort();
    chat.messages.length = i;
    ask(area.value);
  };
  area.addEventListener("keydown", (e) => {
    if (e.key === "Escape") { e.stopPropagation(); back(); $("input").focus(); }
    if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); send(); }
  });
  root.replaceChildren(el("div", {class: "edit"}, area, el("div", {}, el("button", {class: "plain", type: "button", text: "Cancel", onclick: back}), el("button", {class: "primary", type: "button", text: "Send", onclick: send}))));
  area.focus();
}
const pretty = (text) => { try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; } };
const seconds = (ms) => (ms < 1000 ? Math.round(ms) + " ms" : (ms / 1000).toFixed(ms < 10000 ? 2 : 1) + " s");

// A reply of the model, now or from before.
class ReplyView {
  constructor(message, i) {
    this.message = message;
    this.i = i;
    this.think_text = new Growing();
    this.text = new Growing();
    this.think_title = el("span", {text: "Thinking"});
    this.think = el("details", {class: "think", hidden: true}, el("summary", {}, icon("go"), this.think_title), this.think_text.root);
    this.wait = el("span", {class: "waiting", text: "Waiting for the first token"});
    this.calls = el("div");
    this.after = el("div");
    this.root = el("article", {class: "msg assistant", "aria-label": "Reply"}, this.think, this.wait, this.text.root, this.calls, this.after);
  }
  update() {
    const m = this.message, live = running && running.message === m;
    this.think.hidden = !m.reasoning;
    this.think.classList.toggle("busy", Boolean(live && !m.content && !m.calls.length));
    if (m.reasoning) this.think_text.set(m.reasoning);
    this.think_title.textContent = m.thought_ms ? "Thought for " + seconds(m.thought_ms) : live && !m.content ? "Thinking" : "Thoughts";
    this.wait.hidden = !live || Boolean(m.reasoning || m.content || m.calls.length);
    this.text.set(m.content);
    this.draw_calls(live);
    if (!live) this.finish();
  }
  draw_calls(live) {
    const m = this.message;
    if (live || !this.drawn_calls) this.calls.replaceChildren(...m.calls.map((call) => el("section", {class: "call", "aria-label": "Tool call"}, el("div", {class: "head"}, icon("tool"), el("code", {text: call.name})), el("pre", {text: live ? call.arguments : pretty(call.arguments)}))));
    if (live || this.drawn_calls) return;
    this.drawn_calls = true;
    // The calls that are still without a result are the last thing in the conversation.
    if (!m.calls.length || this.i !== chat.messages.length - 1) return;
    const areas = m.calls.map((call, k) => {
      const id = "result-" + k, area = el("textarea", {id, rows: "2", placeholder: '{"ok": true}', spellcheck: "false"});
      this.calls.children[k].append(el("label", {for: id, text: "Result of " + call.name}), area);
      return area;
    });
    this.calls.append(el("button", {class: "primary", type: "button", text: m.calls.length > 1 ? "Send results" : "Send result", onclick: () => {
      m.calls.forEach((call, k) => chat.messages.push({role: "tool", tool_call_id: call.id, name: call.name, content: areas[k].value}));
      draw(true);
      reply();
    }}));
  }
  finish() {
    const m = this.message, kids = [];
    if (m.error) kids.push(el("div", {class: "error", role: "alert"}, el("span", {text: m.error}), el("button", {class: "plain", type: "button", text: "Try again", onclick: () => again(this.i)})));
    const s = m.stats || {}, facts = [];
    if (m.stopped) facts.push("stopped");
    if (m.finish === "length") facts.push("cut at the length");
    if (s.tokens) facts.push(s.tokens + " tokens");
    if (s.rate) facts.push(s.rate.toFixed(1) + " tok/s");
    if (s.ttft) facts.push("first after " + seconds(s.ttft));
    if (s.cached) facts.push(s.cached + " of " + s.prompt + " cached");
    if (s.per_step > 1) facts.push(s.per_step.toFixed(2) + " tokens a step");
    kids.push(el("div", {class: "acts"}, button("copy", "Copy the reply", () => copy(m.content)), button("again", "Write it again", () => again(this.i)), el("span", {class: "stats", text: facts.join(" · ")})));
    this.after.replaceChildren(...kids);
  }
}

