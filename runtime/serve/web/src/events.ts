// What the server says, as docs/events.schema.json has it.

export type Usage = {
  prompt_tokens: number;
  computed_tokens: number;
  cached_tokens: number;
  forced_tokens: number;
  sampled_tokens: number;
  forward_passes: number;
  without?: { computed_tokens: number; forward_passes: number };
};

export type Cost = Omit<Usage, "forward_passes">;

export type Score = { option: string; logprob: number; p: number };

/** What a wait asks. */
export type Ask = { text?: string; type: string; schema?: Schema; due?: string; default?: unknown };

export type Schema = { type?: string; enum?: unknown[]; minimum?: number; maximum?: number };

export type Event = {
  seq: number;
  time?: string;
  kind: string;
  run?: string;
  program?: string;
  task?: string;
  node?: string;
  branch?: string;
  label?: string;
  does?: string;
  status?: string;
  ask?: Ask;
  text?: string;
  offset?: number;
  tokens?: number[];
  forced?: boolean;
  finish?: string;
  scores?: Score[];
  value?: unknown;
  error?: string;
  cost?: Cost;
  usage?: Usage;
  done?: number;
  total?: number;
  restored?: number;
  first?: number;
  texts?: Record<string, string>;
};
