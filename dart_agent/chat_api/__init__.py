"""OpenAI's chat completions over the policy workers, for evaluation tools and trainers that speak it.

Reading order: `protocol` (what a request may say, what the answer says), `server` (routes, key, errors). An endpoint that
speaks it can be the policy: `endpoint_policy`, `prompt_overflow`.
"""
