"""What csrc/ucx/abi.h says of UCX's interface is what UCX's own headers say, where they are installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from occl.distributed import ucx

ROOT = Path(__file__).parents[1]
FIELDS = {
    ("ContextParams", "ucp_params_t"): {
        "field_mask": "field_mask",
        "features": "features",
        "request_size": "request_size",
        "request_init": "request_init",
        "request_cleanup": "request_cleanup",
        "tag_sender_mask": "tag_sender_mask",
        "mt_workers_shared": "mt_workers_shared",
        "estimated_num_eps": "estimated_num_eps",
    },
    ("WorkerParams", "ucp_worker_params_t"): {"field_mask": "field_mask", "thread_mode": "thread_mode"},
    ("EndpointParams", "ucp_ep_params_t"): {
        "field_mask": "field_mask",
        "address": "address",
        "error_mode": "err_mode",
        "error_handler": "err_handler.cb",
        "error_argument": "err_handler.arg",
    },
    ("ReceiveInfo", "ucp_tag_recv_info_t"): {"sender_tag": "sender_tag", "length": "length"},
    ("RequestParams", "ucp_request_param_t"): {
        "field_mask": "op_attr_mask",
        "flags": "flags",
        "request": "request",
        "callback": "cb",
        "datatype": "datatype",
        "user_data": "user_data",
        "reply_buffer": "reply_buffer",
        "memory_type": "memory_type",
        "receive_info": "recv_info",
        "memory": "memh",
    },
}
"""By our struct and UCX's: our fields and UCX's."""
NUMBERS = {
    "kOk": "UCS_OK",
    "kTruncated": "UCS_ERR_MESSAGE_TRUNCATED",
    "kBusy": "UCS_ERR_BUSY",
    "kCanceled": "UCS_ERR_CANCELED",
    "kLastError": "UCS_ERR_LAST",
    "kContextFeatures": "UCP_PARAM_FIELD_FEATURES",
    "kContextTagSenderMask": "UCP_PARAM_FIELD_TAG_SENDER_MASK",
    "kContextEndpoints": "UCP_PARAM_FIELD_ESTIMATED_NUM_EPS",
    "kFeatureTag": "UCP_FEATURE_TAG",
    "kFeatureWakeup": "UCP_FEATURE_WAKEUP",
    "kWorkerThreadMode": "UCP_WORKER_PARAM_FIELD_THREAD_MODE",
    "kSerialized": "UCS_THREAD_MODE_SERIALIZED",
    "kEndpointAddress": "UCP_EP_PARAM_FIELD_REMOTE_ADDRESS",
    "kEndpointErrorMode": "UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE",
    "kEndpointErrorHandler": "UCP_EP_PARAM_FIELD_ERR_HANDLER",
    "kPeerErrors": "UCP_ERR_HANDLING_MODE_PEER",
    "kRequestCallback": "UCP_OP_ATTR_FIELD_CALLBACK",
    "kRequestUserData": "UCP_OP_ATTR_FIELD_USER_DATA",
    "kRequestFlags": "UCP_OP_ATTR_FIELD_FLAGS",
    "kRequestMemoryType": "UCP_OP_ATTR_FIELD_MEMORY_TYPE",
    "kRequestAlways": "UCP_OP_ATTR_FLAG_NO_IMM_CMPL",
    "kCloseAtOnce": "UCP_EP_CLOSE_FLAG_FORCE",
    "kHostMemory": "UCS_MEMORY_TYPE_HOST",
}
"""Our numbers and UCX's."""


def headers() -> list[Path]:
    """The folders that have ucp/api/ucp.h: of the system, of the package, and of OCCL_TEST_UCX_HEADERS."""
    given = filter(None, os.environ.get("OCCL_TEST_UCX_HEADERS", "").split(":"))
    packaged = [Path(path).parent.parent / "include" for path in ucx.libraries() if "/" in path]
    places = [Path("/usr/include"), *packaged, *map(Path, given)]
    return [place for place in places if (place / "ucp/api/ucp.h").exists()]


def program() -> str:
    """A source file that compiles only if both sides agree."""
    lines = [
        "#include <cstddef>",
        "#include <type_traits>",
        "#include <ucp/api/ucp.h>",
        '#include "ucx/abi.h"',
    ]
    lines += ["#include <ucs/config/global_opts.h>", "using namespace occl::ucx::abi;"]
    for (ours, theirs), fields in FIELDS.items():
        for mine, other in fields.items():
            lines.append(f"static_assert(offsetof({ours}, {mine}) == offsetof({theirs}, {other}));")
            size = f"sizeof({theirs}::{other.split('.')[0]})"
            if "." not in other:
                lines.append(f"static_assert(sizeof({ours}::{mine}) == {size});")
    for mine, other in NUMBERS.items():
        lines.append(f"static_assert(static_cast<long long>({mine}) == static_cast<long long>({other}));")
    names = re.findall(r'f\(all\.(\w+), "(\w+)"\)', (ROOT / "csrc/ucx/abi.h").read_text())
    assert len(names) > 20
    lines += [
        "template <class T> struct Shape;",
        "template <class R, class... A> struct Shape<R (*)(A...)> {",
        "  static constexpr std::size_t arguments = sizeof...(A);",
        "  static constexpr std::size_t bytes = (std::size_t{0} + ... + sizeof(A));",
        "  static constexpr std::size_t result = [] {",
        "    if constexpr (std::is_void_v<R>) return 0; else return sizeof(R); }();",
        "};",
    ]
    for mine, other in names:
        ours, theirs = f"Shape<decltype(Functions::{mine})>", f"Shape<decltype(&{other})>"
        for what in ("arguments", "bytes", "result"):
            lines.append(f"static_assert({ours}::{what} == {theirs}::{what});")
    return "\n".join(lines) + "\n"


def compile_with(include: Path, text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    source = folder / "abi.cpp"
    source.write_text(text)
    compiler = shutil.which("g++") or "c++"
    flags = ["-std=c++20", "-fsyntax-only", "-Wno-invalid-offsetof", "-Wno-deprecated-declarations"]
    command = [compiler, *flags, f"-I{ROOT / 'csrc'}", f"-isystem{include}", str(source)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.skipif(not headers(), reason="UCX's headers are not installed (Debian: libucx-dev).")
@pytest.mark.parametrize("include", headers(), ids=str)
def test_our_declarations_are_those_of_ucx(include, tmp_path):
    done = compile_with(include, program(), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not headers(), reason="UCX's headers are not installed (Debian: libucx-dev).")
def test_a_wrong_declaration_is_found(tmp_path):
    wrong = (
        program()
        + "static_assert(offsetof(EndpointParams, address) == offsetof(ucp_ep_params_t, err_mode));\n"
    )
    assert compile_with(headers()[0], wrong, tmp_path).returncode != 0
