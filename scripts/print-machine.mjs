// Prints the configuration of an XState 5 machine as the JSON of a chart.
//
//	node scripts/print-machine.mjs ./order-machine.js [export]    > order.json
//
// The module exports the machine (default export, or the named one). A function
// cannot be written as JSON: it stands in the output as {"@expr": "REPLACE …"},
// which the loader refuses until a name or an expression takes its place, and
// each is listed on stderr with its JSON pointer.
import { pathToFileURL } from 'node:url';
import { resolve } from 'node:path';

const [file, name = 'default'] = process.argv.slice(2);
if (!file) {
  console.error('usage: node print-machine.mjs MODULE [EXPORT]');
  process.exit(2);
}
const machine = (await import(pathToFileURL(resolve(file)).href))[name];
if (!machine?.config) {
  console.error(`${file} exports no machine named ${name}`);
  process.exit(1);
}

let open = 0;
const replace = (at, what, fn) => {
  open++;
  console.error(`${at || '/'}: ${what}${fn ? ': ' + String(fn).replace(/\s+/g, ' ').slice(0, 100) : ''}`);
  return { '@expr': `REPLACE ${what}` };
};

// What the library's helpers make are functions with their arguments on them.
function helper(fn, at) {
  switch (fn.type) {
    case 'xstate.assign': {
      const params = {};
      if (typeof fn.assignment === 'function') return { type: 'assign', params: { REPLACE: replace(at, 'assign of a function', fn.assignment) } };
      for (const [key, v] of Object.entries(fn.assignment)) params[key] = plain(v, `${at}/params/${key}`);
      return { type: 'assign', params };
    }
    case 'xstate.raise': {
      const out = { type: 'raise', params: { event: plain(fn.event, `${at}/params/event`) } };
      if (fn.delay !== undefined) out.params.delay = replace(at, 'raise with a delay: use after');
      return out;
    }
  }
  if (Array.isArray(fn.guards) && fn.name === 'not') return { type: 'not', params: { guard: plain(fn.guards[0], `${at}/params/guard`) } };
  if (Array.isArray(fn.guards)) return { type: fn.name, params: { guards: fn.guards.map((g, i) => plain(g, `${at}/params/guards/${i}`)) } };
  if (fn.stateValue !== undefined) return { type: 'stateIn', params: { state: fn.stateValue } };
  return replace(at, fn.type ? `action ${fn.type}` : `function ${fn.name || 'without a name'}`, fn.type ? '' : fn);
}

function plain(v, at) {
  if (typeof v === 'function') return helper(v, at);
  if (typeof v === 'bigint' || (typeof v === 'number' && !Number.isFinite(v))) return replace(at, `the number ${v}`);
  if (v instanceof Date || v instanceof Map || v instanceof Set) return replace(at, `a ${v.constructor.name}`);
  if (Array.isArray(v)) return v.map((x, i) => plain(x, `${at}/${i}`));
  if (v && typeof v === 'object') {
    const out = {};
    for (const [key, x] of Object.entries(v)) {
      if (x === undefined || (at === '' && (key === 'types' || key === 'schemas'))) continue;
      if (at === '' && key === 'options') {
        if (Number.isFinite(x.maxIterations)) out.options = { maxIterations: x.maxIterations };
        continue;
      }
      out[key] = plain(x, `${at}/${key}`);
    }
    return out;
  }
  return v;
}

console.log(JSON.stringify(plain(machine.config, ''), null, 2));
if (open) console.error(`${open} to replace`);
