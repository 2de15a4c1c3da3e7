"""The rate-limit headers of Anthropic and OpenAI, as a plan asks for them."""

from __future__ import annotations

import time

from tests.support.mockllm.http import Headers
from tests.support.mockllm.scenario import Plan


def limit_headers(plan: Plan) -> Headers:
    if not plan.count("limits"):
        return {}
    reset, status = int(time.time()) + 3600, plan.text("limit_status", "allowed_warning")
    return {
        "anthropic-ratelimit-unified-status": status,
        "anthropic-ratelimit-unified-reset": reset,
        "anthropic-ratelimit-unified-representative-claim": "five_hour",
        "anthropic-ratelimit-unified-5h-status": status,
        "anthropic-ratelimit-unified-5h-utilization": "0.91",
        "anthropic-ratelimit-unified-5h-reset": reset,
        "anthropic-ratelimit-unified-7d-utilization": "0.40",
        "anthropic-ratelimit-unified-7d-reset": reset + 86400,
        "anthropic-ratelimit-requests-limit": "1000",
        "anthropic-ratelimit-requests-remaining": "42",
        "x-codex-primary-used-percent": "91",
        "x-codex-primary-window-minutes": "300",
        "x-codex-primary-reset-at": reset,
        "x-codex-secondary-used-percent": "40",
        "x-codex-secondary-window-minutes": "10080",
        "x-codex-secondary-reset-at": reset + 86400,
        "x-ratelimit-limit-requests": "1000",
        "x-ratelimit-remaining-requests": "42",
    }
