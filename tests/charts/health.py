"""Runs integrations/argocd/health.lua as ArgoCD does."""

from __future__ import annotations

from typing import Any

from lupa.lua51 import LuaRuntime

from charts.rendering import ROOT

FOLDER = ROOT / "integrations" / "argocd"


def health(resource: dict[str, Any]) -> dict[str, str]:
    """The script's verdict. ArgoCD's Lua is an implementation of 5.1. It asks no script about an object that is being
    deleted (`test_gitops.py` runs ArgoCD itself)."""
    if resource["metadata"].get("deletionTimestamp"):
        return {"status": "Progressing", "message": "Pending deletion"}
    lua = LuaRuntime(register_eval=False, register_builtins=False)
    # ArgoCD gives scripts no library that reaches out; this one needs ipairs only.
    lua.execute("for name in pairs(_G) do if name ~= 'ipairs' and name ~= '_G' then _G[name] = nil end end")
    lua.globals().obj = lua.table_from(resource, recursive=True)
    return dict(lua.execute((FOLDER / "health.lua").read_text()))
