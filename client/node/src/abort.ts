// Waits that a caller's AbortSignal or `close` ends.

import { setMaxListeners } from 'node:events';

/** @internal setTimeout takes no more, and fires at once if it gets more. */
export const MAX_TIMER_MS = 2 ** 31 - 1;

/** @internal */
export const TIMED_OUT = Symbol('timed out');

/** @internal Calls a listener with the reason when a wait must end; returns a function that removes the listener. */
export type Ending = (listener: (reason: unknown) => void) => () => void;

/**
 * @internal An ending by a signal. Many callers may share a signal, so Node's warning about listeners is switched off for
 * it.
 */
export function abortOf(signal: AbortSignal | undefined): Ending {
  return (listener) => {
    if (signal === undefined) return () => {};
    const aborted = () => listener(signal.reason);
    if (signal.aborted) queueMicrotask(aborted);
    setMaxListeners(0, signal);
    signal.addEventListener('abort', aborted, { once: true });
    return () => signal.removeEventListener('abort', aborted);
  };
}

/** @internal Returns what `promise` resolves to, or TIMED_OUT after `ms`. Throws the reason of an ending. */
export function within<T>(promise: Promise<T>, ms: number, ...endings: Ending[]): Promise<T | typeof TIMED_OUT> {
  let finish!: () => void;
  const found = new Promise<T | typeof TIMED_OUT>((resolve, reject) => {
    // What arrived in time counts, also if this process was too busy to read it.
    const end = () => setImmediate(resolve, TIMED_OUT);
    const timer = setTimeout(end, Math.min(Math.max(ms, 0), MAX_TIMER_MS));
    const forgets = endings.map((ending) => ending(reject));
    finish = () => {
      clearTimeout(timer);
      for (const forget of forgets) forget();
    };
    promise.then(resolve, reject);
  });
  return found.finally(finish);
}
