// ---- Live figures ----
const figures = {
  history: [], points: [],
  begin() { this.points = []; },
  usage(usage, message) {
    const now = performance.now();
    this.points.push([now, usage.completion_tokens]);
    while (this.points.length > 2 && now - this.points[0][0] > 2000) this.points.shift();
    const cached = (usage.prompt_tokens_details && usage.prompt_tokens_details.cached_tokens) || 0;
    Object.assign(message.stats, {tokens: usage.completion_tokens, prompt: usage.prompt_tokens, cached});
    put("cached", cached + " <small>of " + usage.prompt_tokens + "</small>", cached / Math.max(usage.prompt_tokens, 1));
    const length = (models.get($("model").value) || {}).max_model_len || 0, used = usage.prompt_tokens + usage.completion_tokens;
    put("context", used + (length ? " <small>of " + length.toLocaleString() + "</small>" : ""), length ? used / length : 0);
  },
  metrics(m, message) {
    const drafts = m.speculative_decoding || {};
    Object.assign(message.stats, {rate: m.tokens_per_second, ttft: m.time_to_first_token_ms, per_step: drafts.mean_acceptance_length});
    put("ttft", m.time_to_first_token_ms === null ? "–" : seconds(m.time_to_first_token_ms));
    put("step", drafts.mean_acceptance_length ? drafts.mean_acceptance_length.toFixed(2) : "–");
    put("drafts", drafts.num_spec_steps ? (drafts.num_accepted_draft_tokens / drafts.num_spec_steps).toFixed(2) : "–");
    put("accept", drafts.num_draft_tokens ? Math.round(100 * drafts.draft_acceptance_rate) + " %" : "–");
    if (m.tokens_per_second) put("rate", m.tokens_per_second.toFixed(1));
  },
  end() { this.points = []; },
  tick() {
    let rate = 0;
    if (this.points.length > 1) {
      const [first, last] = [this.points[0], this.points[this.points.length - 1]];
      rate = (1000 * (last[1] - first[1])) / Math.max(last[0] - first[0], 1);
      put("rate", rate.toFixed(1));
    }
    this.history.push(rate);
    if (this.history.length > 120) this.history.shift();
    const top = Math.max(...this.history, 1), step = 100 / 119, x = (i) => (100 - (this.history.length - 1 - i) * step).toFixed(2);
    const line = this.history.map((r, i) => (i ? "L" : "M") + x(i) + " " + (38 - (36 * r) / top).toFixed(2)).join("");
    const [fill, stroke] = $("spark").children;
    stroke.setAttribute("d", line);
    fill.setAttribute("d", line + "L100 40L" + x(0) + " 40Z");
  },
};
// "12 <small>of 40</small>": the only mark-up, and made of numbers alone.
function put(name, text, share) {
  const [main, small] = text.split(/<\/?small>/);
  $("f-" + name).replaceChildren(main, ...(small ? [el("small", {text: small})] : []));
  if (share !== undefined) $("m-" + name).value = Math.min(share, 1);
}
const models = new Map();
async function get_models() {
  const response = await fetch("v1/models", {headers: headers()});
  if (response.status === 401) { if (!key) settings_dialog("The server asks for an API key."); return; }
  if (!response.ok) return;
  models.clear();
  for (const row of (await response.json()).data) models.set(row.id, row);
  const select = $("model");
  select.replaceChildren(...[...models.keys()].map((id) => el("option", {value: id, text: id})));
  if (models.has(settings.model)) select.value = settings.model;
}
async function watch() {
  let state = "gone", health = null;
  try {
    health = await (await fetch("health")).json();
    state = health.status;
  } catch { /* no server */ }
  const label = {ok: "ready", gone: "not reachable"}[state] || state;
  if ($("state").textContent !== label) $("state").textContent = label;
  $("state").dataset.state = state;
  if (health && health.pool_rows) {
    const kept = health.reclaimable_rows, used = health.pool_rows - health.free_rows - kept, share = (n) => Math.round((100 * n) / health.pool_rows) + " %";
    put("pool", share(used) + " <small>of " + health.pool_rows.toLocaleString() + "</small>", used / health.pool_rows);
    $("f-kept").textContent = health.kept_states + " kept prefixes hold " + share(kept);
    put("running", String(health.running));
    put("waiting", String(health.waiting));
  }
  if (state === "ok" && models.size === 0) await get_models().catch(() => {});
  setTimeout(watch, document.hidden ? 10000 : running ? 1000 : 3000);
}
setInterval(() => { if (!document.hidden) figures.tick(); }, 500);

