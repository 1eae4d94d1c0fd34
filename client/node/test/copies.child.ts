// Reports what arrived of a pool that another thread or process sent.

import { parentPort, workerData } from 'node:worker_threads';

function describe(copy: object): unknown {
  return { keys: Reflect.ownKeys(copy), next: typeof (copy as Record<string, unknown>)['next'] };
}

if (parentPort !== null) parentPort.postMessage(describe(workerData as object));
else {
  process.once('message', (copy) => process.send!(describe(copy as object), () => process.disconnect()));
  process.send!('listening');
}
