// ---- The rest of the page ----
let toast_timer = 0;
function toast(text, action, act) {
  $("toast").replaceChildren(el("span", {text}), ...(action ? [el("button", {type: "button", text: action, onclick: () => { $("toast").hidden = true; act(); }})] : []));
  $("toast").hidden = false;
  clearTimeout(toast_timer);
  toast_timer = setTimeout(() => { $("toast").hidden = true; }, action ? 7000 : 2500);
}
const say = (text) => { $("say").textContent = text; };
function ready() {
  const here = running && running.chat === chat, send = $("send");
  send.replaceChildren(icon(here ? "stop" : "send"));
  send.setAttribute("aria-label", here ? "Stop" : "Send");
  send.disabled = !here && (Boolean(running) || !$("input").value.trim());
}
function grow() {
  $("input").style.height = "auto";
  $("input").style.height = $("input").scrollHeight + "px";
  ready();
}
$("input").addEventListener("input", grow);
$("composer").addEventListener("submit", (e) => {
  e.preventDefault();
  if (running && running.chat === chat) return running.stop.abort();
  const text = $("input").value;
  if (!text.trim() || running) return;
  $("input").value = "";
  grow();
  ask(text);
});
$("input").addEventListener("keydown", (e) => {
  if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
    e.preventDefault();
    if (!running) $("composer").requestSubmit();
  } else if (e.key === "ArrowUp" && !$("input").value) {
    const last = [...log.querySelectorAll(".msg.user")].pop();
    if (last) { e.preventDefault(); last.querySelector(".acts button:last-child").click(); }
  }
});
document.addEventListener("keydown", (e) => {
  if (e.key === "Escape" && !$("dialog").open) {
    if (document.body.classList.contains("drawer")) close_drawer();
    else if (running) running.stop.abort();
  } else if (e.altKey && e.code === "KeyN") { e.preventDefault(); show(fresh()); }
  else if (e.key === "/" && !/INPUT|TEXTAREA|SELECT/.test(document.activeElement.tagName) && !$("dialog").open) { e.preventDefault(); $("input").focus(); }
});
$("new").onclick = () => show(fresh());
function close_drawer() { document.body.classList.remove("drawer"); $("menu").setAttribute("aria-expanded", "false"); }
$("menu").onclick = () => { document.body.classList.add("drawer"); $("menu").setAttribute("aria-expanded", "true"); $("new").focus(); };
$("shade").onclick = close_drawer;
function show_live(on) { $("live").hidden = !on; $("show-live").setAttribute("aria-expanded", String(on)); }
$("show-live").onclick = () => { show_live($("live").hidden); if (innerWidth > 1080) store("live", !$("live").hidden); };
$("hide-live").onclick = () => { show_live(false); if (innerWidth > 1080) store("live", false); $("show-live").focus(); };
show_live(innerWidth > 1080 && stored("live", true));

const set_theme = (name) => { if (name) document.documentElement.dataset.theme = name; else delete document.documentElement.dataset.theme; };
set_theme(stored("theme", ""));
$("theme").onclick = () => {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark" || (!stored("theme", "") && matchMedia("(prefers-color-scheme: dark)").matches);
  store("theme", dark ? "light" : "dark");
  set_theme(dark ? "light" : "dark");
};
for (const [kind, text] of [["A sum", "What is 347 + 286?"], ["Words", "Sort these words alphabetically: river, castle, apple, garden"], ["A story", "Tell me a story about a clever fox and Nora who look for a ring in a castle."], ["A fact", "What is the capital of Norway?"]]) {
  $("ideas").append(el("button", {type: "button", onclick: () => ask(text)}, el("small", {text: kind}), text));
}
window.addEventListener("beforeunload", (e) => { if (running) e.preventDefault(); });
opened.then(() => in_store("readonly", (s) => s.getAll())).then((found) => {
  for (const one of found || []) chats.set(one.id, one);
  show(fresh());
  grow();
  watch();
});
