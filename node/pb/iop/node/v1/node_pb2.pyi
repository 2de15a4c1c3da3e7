import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import struct_pb2 as _struct_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SessionMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SESSION_MODE_UNSPECIFIED: _ClassVar[SessionMode]
    SESSION_MODE_CREATE_IF_MISSING: _ClassVar[SessionMode]
    SESSION_MODE_REQUIRE_EXISTING: _ClassVar[SessionMode]
    SESSION_MODE_FORK: _ClassVar[SessionMode]

class RunState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RUN_STATE_UNSPECIFIED: _ClassVar[RunState]
    RUN_STATE_ACCEPTED: _ClassVar[RunState]
    RUN_STATE_RUNNING: _ClassVar[RunState]
    RUN_STATE_COMPLETE: _ClassVar[RunState]
    RUN_STATE_ERROR: _ClassVar[RunState]
    RUN_STATE_CANCELLED: _ClassVar[RunState]

class SessionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SESSION_STATE_UNSPECIFIED: _ClassVar[SessionState]
    SESSION_STATE_IDLE: _ClassVar[SessionState]
    SESSION_STATE_ACTIVE: _ClassVar[SessionState]
    SESSION_STATE_TERMINATED: _ClassVar[SessionState]

class Readiness(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    READINESS_UNSPECIFIED: _ClassVar[Readiness]
    READINESS_READY: _ClassVar[Readiness]
    READINESS_MISSING_BINARY: _ClassVar[Readiness]
    READINESS_UNAUTHENTICATED: _ClassVar[Readiness]
    READINESS_UNSUPPORTED_MODEL: _ClassVar[Readiness]
    READINESS_PROBE_ERROR: _ClassVar[Readiness]

class PermissionDecision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PERMISSION_DECISION_UNSPECIFIED: _ClassVar[PermissionDecision]
    PERMISSION_DECISION_ALLOW: _ClassVar[PermissionDecision]
    PERMISSION_DECISION_DENY: _ClassVar[PermissionDecision]

class InputVerb(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INPUT_VERB_UNSPECIFIED: _ClassVar[InputVerb]
    INPUT_VERB_INTERRUPT: _ClassVar[InputVerb]
    INPUT_VERB_STEER: _ClassVar[InputVerb]
    INPUT_VERB_QUEUE: _ClassVar[InputVerb]

class InputOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INPUT_OUTCOME_UNSPECIFIED: _ClassVar[InputOutcome]
    INPUT_OUTCOME_CONFIRMED: _ClassVar[InputOutcome]
    INPUT_OUTCOME_NOT_CONFIRMED: _ClassVar[InputOutcome]
    INPUT_OUTCOME_TOO_LATE: _ClassVar[InputOutcome]
SESSION_MODE_UNSPECIFIED: SessionMode
SESSION_MODE_CREATE_IF_MISSING: SessionMode
SESSION_MODE_REQUIRE_EXISTING: SessionMode
SESSION_MODE_FORK: SessionMode
RUN_STATE_UNSPECIFIED: RunState
RUN_STATE_ACCEPTED: RunState
RUN_STATE_RUNNING: RunState
RUN_STATE_COMPLETE: RunState
RUN_STATE_ERROR: RunState
RUN_STATE_CANCELLED: RunState
SESSION_STATE_UNSPECIFIED: SessionState
SESSION_STATE_IDLE: SessionState
SESSION_STATE_ACTIVE: SessionState
SESSION_STATE_TERMINATED: SessionState
READINESS_UNSPECIFIED: Readiness
READINESS_READY: Readiness
READINESS_MISSING_BINARY: Readiness
READINESS_UNAUTHENTICATED: Readiness
READINESS_UNSUPPORTED_MODEL: Readiness
READINESS_PROBE_ERROR: Readiness
PERMISSION_DECISION_UNSPECIFIED: PermissionDecision
PERMISSION_DECISION_ALLOW: PermissionDecision
PERMISSION_DECISION_DENY: PermissionDecision
INPUT_VERB_UNSPECIFIED: InputVerb
INPUT_VERB_INTERRUPT: InputVerb
INPUT_VERB_STEER: InputVerb
INPUT_VERB_QUEUE: InputVerb
INPUT_OUTCOME_UNSPECIFIED: InputOutcome
INPUT_OUTCOME_CONFIRMED: InputOutcome
INPUT_OUTCOME_NOT_CONFIRMED: InputOutcome
INPUT_OUTCOME_TOO_LATE: InputOutcome

class RunRequest(_message.Message):
    __slots__ = ("run_id", "adapter", "target", "session_id", "session_mode", "background", "workspace", "policy", "input", "timeout", "metadata", "include_activity", "after_sequence", "fork_from")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_MODE_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FORK_FROM_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    adapter: str
    target: str
    session_id: str
    session_mode: SessionMode
    background: bool
    workspace: str
    policy: _struct_pb2.Struct
    input: str
    timeout: _duration_pb2.Duration
    metadata: _containers.ScalarMap[str, str]
    include_activity: bool
    after_sequence: int
    fork_from: str
    def __init__(self, run_id: _Optional[str] = ..., adapter: _Optional[str] = ..., target: _Optional[str] = ..., session_id: _Optional[str] = ..., session_mode: _Optional[_Union[SessionMode, str]] = ..., background: _Optional[bool] = ..., workspace: _Optional[str] = ..., policy: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ..., input: _Optional[str] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., metadata: _Optional[_Mapping[str, str]] = ..., include_activity: _Optional[bool] = ..., after_sequence: _Optional[int] = ..., fork_from: _Optional[str] = ...) -> None: ...

class RunEvent(_message.Message):
    __slots__ = ("run_id", "type", "delta", "message", "error", "usage", "metadata", "timestamp", "session_id", "background", "node_id", "sequence", "previous_sequence", "failure", "activity")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    type: str
    delta: str
    message: str
    error: str
    usage: Usage
    metadata: _containers.ScalarMap[str, str]
    timestamp: _timestamp_pb2.Timestamp
    session_id: str
    background: bool
    node_id: str
    sequence: int
    previous_sequence: int
    failure: Failure
    activity: Activity
    def __init__(self, run_id: _Optional[str] = ..., type: _Optional[str] = ..., delta: _Optional[str] = ..., message: _Optional[str] = ..., error: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., metadata: _Optional[_Mapping[str, str]] = ..., timestamp: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., session_id: _Optional[str] = ..., background: _Optional[bool] = ..., node_id: _Optional[str] = ..., sequence: _Optional[int] = ..., previous_sequence: _Optional[int] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., activity: _Optional[_Union[Activity, _Mapping]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens", "cost_usd")
    INPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_READ_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_WRITE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COST_USD_FIELD_NUMBER: _ClassVar[int]
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost_usd: float
    def __init__(self, input_tokens: _Optional[int] = ..., output_tokens: _Optional[int] = ..., cache_read_tokens: _Optional[int] = ..., cache_write_tokens: _Optional[int] = ..., reasoning_tokens: _Optional[int] = ..., cost_usd: _Optional[float] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("code", "message", "retryable", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    retryable: bool
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., retryable: _Optional[bool] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Activity(_message.Message):
    __slots__ = ("tool_call", "tool_result", "plan", "rate_limit", "notice", "permission_request")
    TOOL_CALL_FIELD_NUMBER: _ClassVar[int]
    TOOL_RESULT_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    RATE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    PERMISSION_REQUEST_FIELD_NUMBER: _ClassVar[int]
    tool_call: ToolCall
    tool_result: ToolResult
    plan: Plan
    rate_limit: RateLimit
    notice: Notice
    permission_request: PermissionRequest
    def __init__(self, tool_call: _Optional[_Union[ToolCall, _Mapping]] = ..., tool_result: _Optional[_Union[ToolResult, _Mapping]] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., rate_limit: _Optional[_Union[RateLimit, _Mapping]] = ..., notice: _Optional[_Union[Notice, _Mapping]] = ..., permission_request: _Optional[_Union[PermissionRequest, _Mapping]] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("call_id", "name", "input_json")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INPUT_JSON_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    name: str
    input_json: str
    def __init__(self, call_id: _Optional[str] = ..., name: _Optional[str] = ..., input_json: _Optional[str] = ...) -> None: ...

class ToolResult(_message.Message):
    __slots__ = ("call_id", "output", "is_error")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    IS_ERROR_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    output: str
    is_error: bool
    def __init__(self, call_id: _Optional[str] = ..., output: _Optional[str] = ..., is_error: _Optional[bool] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[PlanEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[PlanEntry, _Mapping]]] = ...) -> None: ...

class PlanEntry(_message.Message):
    __slots__ = ("text", "status")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    text: str
    status: str
    def __init__(self, text: _Optional[str] = ..., status: _Optional[str] = ...) -> None: ...

class RateLimit(_message.Message):
    __slots__ = ("status", "window", "used_percent", "resets_at")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    USED_PERCENT_FIELD_NUMBER: _ClassVar[int]
    RESETS_AT_FIELD_NUMBER: _ClassVar[int]
    status: str
    window: str
    used_percent: float
    resets_at: _timestamp_pb2.Timestamp
    def __init__(self, status: _Optional[str] = ..., window: _Optional[str] = ..., used_percent: _Optional[float] = ..., resets_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Notice(_message.Message):
    __slots__ = ("code", "message")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class PermissionRequest(_message.Message):
    __slots__ = ("request_id", "tool", "input_json", "reason", "expires_at", "kind")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOOL_FIELD_NUMBER: _ClassVar[int]
    INPUT_JSON_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    tool: str
    input_json: str
    reason: str
    expires_at: _timestamp_pb2.Timestamp
    kind: str
    def __init__(self, request_id: _Optional[str] = ..., tool: _Optional[str] = ..., input_json: _Optional[str] = ..., reason: _Optional[str] = ..., expires_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., kind: _Optional[str] = ...) -> None: ...

class AttachRunRequest(_message.Message):
    __slots__ = ("run_id", "after_sequence", "include_activity")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_ACTIVITY_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    after_sequence: int
    include_activity: bool
    def __init__(self, run_id: _Optional[str] = ..., after_sequence: _Optional[int] = ..., include_activity: _Optional[bool] = ...) -> None: ...

class CancelRunRequest(_message.Message):
    __slots__ = ("run_id", "reason")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    reason: str
    def __init__(self, run_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class CancelRunResponse(_message.Message):
    __slots__ = ("accepted", "state")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    state: RunState
    def __init__(self, accepted: _Optional[bool] = ..., state: _Optional[_Union[RunState, str]] = ...) -> None: ...

class RunInfo(_message.Message):
    __slots__ = ("run_id", "state", "adapter", "target", "session_id", "background", "workspace", "accepted_at", "ended_at", "first_sequence", "last_sequence", "failure", "workspace_shared_with", "recovered", "queue_position", "open_requests")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_SHARED_WITH_FIELD_NUMBER: _ClassVar[int]
    RECOVERED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    OPEN_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    state: RunState
    adapter: str
    target: str
    session_id: str
    background: bool
    workspace: str
    accepted_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    first_sequence: int
    last_sequence: int
    failure: Failure
    workspace_shared_with: _containers.RepeatedScalarFieldContainer[str]
    recovered: bool
    queue_position: int
    open_requests: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, run_id: _Optional[str] = ..., state: _Optional[_Union[RunState, str]] = ..., adapter: _Optional[str] = ..., target: _Optional[str] = ..., session_id: _Optional[str] = ..., background: _Optional[bool] = ..., workspace: _Optional[str] = ..., accepted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., first_sequence: _Optional[int] = ..., last_sequence: _Optional[int] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., workspace_shared_with: _Optional[_Iterable[str]] = ..., recovered: _Optional[bool] = ..., queue_position: _Optional[int] = ..., open_requests: _Optional[_Iterable[str]] = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class GetRunResponse(_message.Message):
    __slots__ = ("run", "details")
    class DetailsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RUN_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    run: RunInfo
    details: _containers.ScalarMap[str, str]
    def __init__(self, run: _Optional[_Union[RunInfo, _Mapping]] = ..., details: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ("page_size", "page_token", "active_only")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_ONLY_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    active_only: bool
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., active_only: _Optional[bool] = ...) -> None: ...

class ListRunsResponse(_message.Message):
    __slots__ = ("runs", "next_page_token")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[RunInfo]
    next_page_token: str
    def __init__(self, runs: _Optional[_Iterable[_Union[RunInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListArtifactsRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class ListArtifactsResponse(_message.Message):
    __slots__ = ("artifacts",)
    ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    artifacts: _containers.RepeatedCompositeFieldContainer[Artifact]
    def __init__(self, artifacts: _Optional[_Iterable[_Union[Artifact, _Mapping]]] = ...) -> None: ...

class Artifact(_message.Message):
    __slots__ = ("name", "size_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_bytes: int
    def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class GetArtifactRequest(_message.Message):
    __slots__ = ("run_id", "name")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    name: str
    def __init__(self, run_id: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class GetArtifactResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class GetCapabilitiesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetCapabilitiesResponse(_message.Message):
    __slots__ = ("targets", "limits")
    class LimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    targets: _containers.RepeatedCompositeFieldContainer[Target]
    limits: _containers.ScalarMap[str, int]
    def __init__(self, targets: _Optional[_Iterable[_Union[Target, _Mapping]]] = ..., limits: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Target(_message.Message):
    __slots__ = ("adapter", "target", "max_concurrency", "verbs", "forks")
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    VERBS_FIELD_NUMBER: _ClassVar[int]
    FORKS_FIELD_NUMBER: _ClassVar[int]
    adapter: str
    target: str
    max_concurrency: int
    verbs: _containers.RepeatedScalarFieldContainer[str]
    forks: bool
    def __init__(self, adapter: _Optional[str] = ..., target: _Optional[str] = ..., max_concurrency: _Optional[int] = ..., verbs: _Optional[_Iterable[str]] = ..., forks: _Optional[bool] = ...) -> None: ...

class GetNodeStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetNodeStatusResponse(_message.Message):
    __slots__ = ("node_id", "version", "started_at", "recovery_complete", "active_runs", "attached_readers", "limits", "notes", "keeper_pid", "draining", "queued_runs", "config_generation")
    class LimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_RUNS_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_READERS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    KEEPER_PID_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_RUNS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_GENERATION_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    version: str
    started_at: _timestamp_pb2.Timestamp
    recovery_complete: bool
    active_runs: int
    attached_readers: int
    limits: _containers.ScalarMap[str, int]
    notes: _containers.RepeatedScalarFieldContainer[str]
    keeper_pid: int
    draining: bool
    queued_runs: int
    config_generation: int
    def __init__(self, node_id: _Optional[str] = ..., version: _Optional[str] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., recovery_complete: _Optional[bool] = ..., active_runs: _Optional[int] = ..., attached_readers: _Optional[int] = ..., limits: _Optional[_Mapping[str, int]] = ..., notes: _Optional[_Iterable[str]] = ..., keeper_pid: _Optional[int] = ..., draining: _Optional[bool] = ..., queued_runs: _Optional[int] = ..., config_generation: _Optional[int] = ...) -> None: ...

class ReloadConfigRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReloadConfigResponse(_message.Message):
    __slots__ = ("generation",)
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    generation: int
    def __init__(self, generation: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("active_runs",)
    ACTIVE_RUNS_FIELD_NUMBER: _ClassVar[int]
    active_runs: int
    def __init__(self, active_runs: _Optional[int] = ...) -> None: ...

class SessionInfo(_message.Message):
    __slots__ = ("session_id", "state", "adapter", "target", "anonymous", "created_at", "used_at", "run_id")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    ANONYMOUS_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    USED_AT_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    state: SessionState
    adapter: str
    target: str
    anonymous: bool
    created_at: _timestamp_pb2.Timestamp
    used_at: _timestamp_pb2.Timestamp
    run_id: str
    def __init__(self, session_id: _Optional[str] = ..., state: _Optional[_Union[SessionState, str]] = ..., adapter: _Optional[str] = ..., target: _Optional[str] = ..., anonymous: _Optional[bool] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., used_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., run_id: _Optional[str] = ...) -> None: ...

class GetSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class GetSessionResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: SessionInfo
    def __init__(self, session: _Optional[_Union[SessionInfo, _Mapping]] = ...) -> None: ...

class ListSessionsRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListSessionsResponse(_message.Message):
    __slots__ = ("sessions", "next_page_token")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[SessionInfo]
    next_page_token: str
    def __init__(self, sessions: _Optional[_Iterable[_Union[SessionInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class TerminateSessionRequest(_message.Message):
    __slots__ = ("session_id", "cancel_active")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CANCEL_ACTIVE_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    cancel_active: bool
    def __init__(self, session_id: _Optional[str] = ..., cancel_active: _Optional[bool] = ...) -> None: ...

class TerminateSessionResponse(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: SessionInfo
    def __init__(self, session: _Optional[_Union[SessionInfo, _Mapping]] = ...) -> None: ...

class GetTranscriptRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class GetTranscriptResponse(_message.Message):
    __slots__ = ("run_id", "role", "text", "time", "tool", "call_id", "is_error")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    TOOL_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    IS_ERROR_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    role: str
    text: str
    time: _timestamp_pb2.Timestamp
    tool: str
    call_id: str
    is_error: bool
    def __init__(self, run_id: _Optional[str] = ..., role: _Optional[str] = ..., text: _Optional[str] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., tool: _Optional[str] = ..., call_id: _Optional[str] = ..., is_error: _Optional[bool] = ...) -> None: ...

class ProfileReadiness(_message.Message):
    __slots__ = ("profile_id", "provider_id", "model_id", "readiness", "version", "detail", "diagnostic", "notices", "capabilities", "next_step", "taken_at", "catalog_hash")
    PROFILE_ID_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_ID_FIELD_NUMBER: _ClassVar[int]
    READINESS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    DIAGNOSTIC_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    CAPABILITIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_STEP_FIELD_NUMBER: _ClassVar[int]
    TAKEN_AT_FIELD_NUMBER: _ClassVar[int]
    CATALOG_HASH_FIELD_NUMBER: _ClassVar[int]
    profile_id: str
    provider_id: str
    model_id: str
    readiness: Readiness
    version: str
    detail: str
    diagnostic: str
    notices: _containers.RepeatedScalarFieldContainer[str]
    capabilities: _containers.RepeatedScalarFieldContainer[str]
    next_step: str
    taken_at: _timestamp_pb2.Timestamp
    catalog_hash: str
    def __init__(self, profile_id: _Optional[str] = ..., provider_id: _Optional[str] = ..., model_id: _Optional[str] = ..., readiness: _Optional[_Union[Readiness, str]] = ..., version: _Optional[str] = ..., detail: _Optional[str] = ..., diagnostic: _Optional[str] = ..., notices: _Optional[_Iterable[str]] = ..., capabilities: _Optional[_Iterable[str]] = ..., next_step: _Optional[str] = ..., taken_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., catalog_hash: _Optional[str] = ...) -> None: ...

class ListReadinessRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListReadinessResponse(_message.Message):
    __slots__ = ("profiles", "catalog_hash")
    PROFILES_FIELD_NUMBER: _ClassVar[int]
    CATALOG_HASH_FIELD_NUMBER: _ClassVar[int]
    profiles: _containers.RepeatedCompositeFieldContainer[ProfileReadiness]
    catalog_hash: str
    def __init__(self, profiles: _Optional[_Iterable[_Union[ProfileReadiness, _Mapping]]] = ..., catalog_hash: _Optional[str] = ...) -> None: ...

class ProbeReadinessRequest(_message.Message):
    __slots__ = ("profile_ids", "max_age")
    PROFILE_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_FIELD_NUMBER: _ClassVar[int]
    profile_ids: _containers.RepeatedScalarFieldContainer[str]
    max_age: _duration_pb2.Duration
    def __init__(self, profile_ids: _Optional[_Iterable[str]] = ..., max_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ProbeReadinessResponse(_message.Message):
    __slots__ = ("profiles", "catalog_hash")
    PROFILES_FIELD_NUMBER: _ClassVar[int]
    CATALOG_HASH_FIELD_NUMBER: _ClassVar[int]
    profiles: _containers.RepeatedCompositeFieldContainer[ProfileReadiness]
    catalog_hash: str
    def __init__(self, profiles: _Optional[_Iterable[_Union[ProfileReadiness, _Mapping]]] = ..., catalog_hash: _Optional[str] = ...) -> None: ...

class CommandRequest(_message.Message):
    __slots__ = ("adapter", "target", "name", "arguments")
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    adapter: str
    target: str
    name: str
    arguments: _struct_pb2.Struct
    def __init__(self, adapter: _Optional[str] = ..., target: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class CommandResponse(_message.Message):
    __slots__ = ("failure", "status", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    status: UsageStatus
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ..., status: _Optional[_Union[UsageStatus, _Mapping]] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class UsageStatus(_message.Message):
    __slots__ = ("availability", "reason", "plan", "windows", "taken_at", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    AVAILABILITY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    TAKEN_AT_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    availability: str
    reason: str
    plan: str
    windows: _containers.RepeatedCompositeFieldContainer[UsageWindow]
    taken_at: _timestamp_pb2.Timestamp
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, availability: _Optional[str] = ..., reason: _Optional[str] = ..., plan: _Optional[str] = ..., windows: _Optional[_Iterable[_Union[UsageWindow, _Mapping]]] = ..., taken_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class UsageWindow(_message.Message):
    __slots__ = ("name", "used_percent", "used", "limit", "unit", "duration_minutes", "resets_at", "reset_text", "state")
    NAME_FIELD_NUMBER: _ClassVar[int]
    USED_PERCENT_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    DURATION_MINUTES_FIELD_NUMBER: _ClassVar[int]
    RESETS_AT_FIELD_NUMBER: _ClassVar[int]
    RESET_TEXT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    name: str
    used_percent: float
    used: float
    limit: float
    unit: str
    duration_minutes: int
    resets_at: _timestamp_pb2.Timestamp
    reset_text: str
    state: str
    def __init__(self, name: _Optional[str] = ..., used_percent: _Optional[float] = ..., used: _Optional[float] = ..., limit: _Optional[float] = ..., unit: _Optional[str] = ..., duration_minutes: _Optional[int] = ..., resets_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., reset_text: _Optional[str] = ..., state: _Optional[str] = ...) -> None: ...

class RespondPermissionRequest(_message.Message):
    __slots__ = ("run_id", "request_id", "decision", "message", "answer")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    request_id: str
    decision: PermissionDecision
    message: str
    answer: _struct_pb2.Struct
    def __init__(self, run_id: _Optional[str] = ..., request_id: _Optional[str] = ..., decision: _Optional[_Union[PermissionDecision, str]] = ..., message: _Optional[str] = ..., answer: _Optional[_Union[_struct_pb2.Struct, _Mapping]] = ...) -> None: ...

class RespondPermissionResponse(_message.Message):
    __slots__ = ("decision",)
    DECISION_FIELD_NUMBER: _ClassVar[int]
    decision: PermissionDecision
    def __init__(self, decision: _Optional[_Union[PermissionDecision, str]] = ...) -> None: ...

class SendInputRequest(_message.Message):
    __slots__ = ("run_id", "verb", "input", "new_run_id")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    VERB_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    NEW_RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    verb: InputVerb
    input: str
    new_run_id: str
    def __init__(self, run_id: _Optional[str] = ..., verb: _Optional[_Union[InputVerb, str]] = ..., input: _Optional[str] = ..., new_run_id: _Optional[str] = ...) -> None: ...

class SendInputResponse(_message.Message):
    __slots__ = ("outcome", "detail", "run_id")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    outcome: InputOutcome
    detail: str
    run_id: str
    def __init__(self, outcome: _Optional[_Union[InputOutcome, str]] = ..., detail: _Optional[str] = ..., run_id: _Optional[str] = ...) -> None: ...
