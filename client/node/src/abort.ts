// AbortSignals of callers.

import { setMaxListeners } from 'node:events';

/**
 * Calls `listener` once the signal is aborted; returns a function that removes it. Many callers may share a signal, so
 * Node's warning about listeners is switched off for it.
 */
export function onAbort(signal: AbortSignal | undefined, listener: (reason: unknown) => void): () => void {
  if (signal === undefined) return () => {};
  const aborted = () => listener(signal.reason);
  setMaxListeners(0, signal);
  signal.addEventListener('abort', aborted, { once: true });
  return () => signal.removeEventListener('abort', aborted);
}
