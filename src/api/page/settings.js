// ---- Settings ----
for (const [name, label, min, max, step] of NUMBERS) $("sampling").append(el("label", {class: "field"}, el("span", {text: label}), el("input", {id: "s-" + name, type: "number", min, max, step: step === 1 ? 1 : "any", placeholder: "default", inputmode: "decimal"})));
function fill_settings(from) {
  $("key").value = key;
  $("keep-key").checked = Boolean(stored("key", ""));
  $("system").value = from.system;
  $("tools").value = from.tools;
  for (const [name] of NUMBERS) $("s-" + name).value = from.sampling[name] ?? "";
}
function settings_dialog(problem) {
  $("problem").hidden = !problem;
  $("problem").textContent = problem || "";
  if ($("dialog").open) return;
  fill_settings(settings);
  $("dialog").showModal();
  if (problem && problem.includes("key")) $("key").focus();
}
$("form").addEventListener("submit", (e) => {
  try {
    const tools = $("tools").value.trim() ? JSON.parse($("tools").value) : [];
    if (!Array.isArray(tools)) throw new Error();
  } catch {
    e.preventDefault();
    $("problem").hidden = false;
    $("problem").textContent = "The tools are not a JSON list.";
    return $("tools").focus();
  }
  key = $("key").value.trim();
  try { sessionStorage.setItem("tandem.key", key); } catch { /* this page only */ }
  store("key", $("keep-key").checked ? key : "");
  settings.system = $("system").value;
  settings.tools = $("tools").value;
  settings.sampling = {};
  for (const [name] of NUMBERS) if ($("s-" + name).value !== "") settings.sampling[name] = Number($("s-" + name).value);
  store("settings", settings);
  get_models().catch(() => {});
  $("input").focus();
});
$("reset").onclick = () => fill_settings({system: "", tools: "", sampling: {}});
$("dialog-close").onclick = () => $("dialog").close();
$("settings").onclick = $("settings-2").onclick = () => settings_dialog();
$("model").onchange = () => { settings.model = $("model").value; store("settings", settings); };
$("effort").value = settings.effort;
$("effort").onchange = () => { settings.effort = $("effort").value; store("settings", settings); };

// ---- Export and import ----
$("export").onclick = () => {
  const text = JSON.stringify({schema: "tandem.chats/1", chats: [...chats.values()]}, null, 1);
  const address = URL.createObjectURL(new Blob([text], {type: "application/json"}));
  el("a", {href: address, download: "tandem-chats.json"}).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
};
$("import").onclick = () => $("file").click();
$("file").onchange = async () => {
  const file = $("file").files[0];
  $("file").value = "";
  try { toast((await import_chats(await file.text())) + " conversations imported"); } catch { toast("That file holds no conversations of this page"); }
};
async function import_chats(text) {
  const data = JSON.parse(text);
  if (data.schema !== "tandem.chats/1") throw new Error();
  const texts = (o, names) => names.every((n) => typeof o[n] === "string");
  const found = data.chats.map((one) => {
    if (!texts(one, ["id", "title"]) || !Array.isArray(one.messages)) throw new Error();
    const messages = one.messages.map((m) => {
      if (!texts(m, ["content"]) || !["user", "assistant", "tool"].includes(m.role)) throw new Error();
      if (m.role !== "assistant") return {role: m.role, content: m.content, ...(texts(m, ["tool_call_id"]) ? {tool_call_id: m.tool_call_id, name: String(m.name || "")} : {})};
      const calls = (m.calls || []).filter((c) => texts(c, ["id", "name", "arguments"]));
      const s = Object.fromEntries(Object.entries(m.stats || {}).filter(([, v]) => typeof v === "number"));
      return {role: "assistant", content: m.content, reasoning: String(m.reasoning || ""), calls, stats: s, finish: String(m.finish || ""), stopped: m.stopped === true, thought_ms: Number(m.thought_ms) || 0};
    });
    return {id: one.id, title: one.title, created: Number(one.created) || Date.now(), updated: Number(one.updated) || Date.now(), messages};
  });
  for (const one of found) { chats.set(one.id, one); await in_store("readwrite", (s) => s.put(one)); }
  if (chats.has(chat.id)) show(chats.get(chat.id)); else list();
  return found.length;
}

