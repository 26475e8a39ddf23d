// A service with the OpenTelemetry SDK for Node: `node node_client.mjs PLAN`; plan and report as in python_client.py.
// Protocols: http/json, http/protobuf, grpc. Its report has no content hashes, only ids.
import { createRequire } from "node:module";
import { renameSync, writeFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

const plan = JSON.parse(process.argv[2]);
const require = createRequire(plan.modules + "/");
const { BasicTracerProvider, BatchSpanProcessor } = require("@opentelemetry/sdk-trace-base");
const { resourceFromAttributes } = require("@opentelemetry/resources");
const { trace, ROOT_CONTEXT, SpanKind, diag } = require("@opentelemetry/api");
const packages = { "http/json": "http", "http/protobuf": "proto", grpc: "grpc" };
const { OTLPTraceExporter } = require(`@opentelemetry/exporter-trace-otlp-${packages[plan.protocol]}`);

const QUEUE = 40_000;
const STAGES = ["queue", "prefill", "decode", "respond"];
const MASK = (1n << 64n) - 1n;
diag.disable();

const state = { acknowledged: 0, ids: 0n, failed: [], failedExports: 0 };
const real = new OTLPTraceExporter({
  url: plan.protocol === "grpc" ? plan.endpoint : `${plan.endpoint}/v1/traces`,
  compression: plan.gzip ? "gzip" : "none",
});
const settled = () => state.acknowledged + state.failed.length;
const ledger = {
  export(spans, done) {
    real.export(spans, (result) => {
      const ids = spans.map((span) => BigInt("0x" + span.spanContext().spanId));
      if (result.code === 0) {
        state.acknowledged += ids.length;
        for (const id of ids) state.ids = (state.ids + id) & MASK;
      } else {
        state.failedExports += 1;
        for (const id of ids) state.failed.push([id, 0n]);
      }
      writeFileSync(plan.report.replace(/\.json$/, ".progress"), String(settled()));
      done(result);
    });
  },
  shutdown: () => real.shutdown(),
  forceFlush: () => real.forceFlush?.() ?? Promise.resolve(),
};
const processor = new BatchSpanProcessor(ledger, {
  maxQueueSize: QUEUE, scheduledDelayMillis: 200, maxExportBatchSize: 512,
});
const provider = new BasicTracerProvider({
  resource: resourceFromAttributes({ "service.name": plan.name, "service.instance.id": String(process.pid) }),
  spanProcessors: [processor],
});
const tracer = provider.getTracer("chaos", "1");

let made = 0;
const begin = performance.now();
while (made < plan.spans) {
  if (made > ((performance.now() - begin) / 1000) * plan.rate || made - settled() > QUEUE - 10_000) {
    await sleep(10);
    continue;
  }
  for (let burst = 0; burst < 200 && made < plan.spans; burst++) {
    const attributes = { "tailspan.role": "request", "gen_ai.request.model": "small", "gen_ai.usage.input_tokens": 17 };
    const root = tracer.startSpan("POST", { kind: SpanKind.SERVER, attributes, root: true });
    const parent = trace.setSpan(ROOT_CONTEXT, root);
    made += 1;
    for (const stage of STAGES.slice(0, plan.spans - made)) {
      const child = { "tailspan.role": "stage", "tailspan.stage": stage };
      tracer.startSpan(stage, { attributes: child }, parent).end();
      made += 1;
    }
    root.end();
  }
  await sleep(0);
}
while (settled() < made) {
  await processor.forceFlush().catch(() => {});
  await sleep(10);
}
await provider.shutdown().catch(() => {});
const report = JSON.stringify(
  { made, acknowledged: state.acknowledged, ids: state.ids, content: null, failed_exports: state.failedExports,
    failed: state.failed },
  (_, value) => (typeof value === "bigint" ? "big:" + value : value),
).replace(/"big:(\d+)"/g, "$1");
writeFileSync(plan.report + ".new", report);
renameSync(plan.report + ".new", plan.report);
process.exit(0);
