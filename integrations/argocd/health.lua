-- The health of a StreamJoin or SessionWindow for ArgoCD. Lua 5.1, no libraries; `obj` is the resource.
local function verdict(status, message)
  return { status = status, message = message }
end

local status = obj.status or {}
local spec = obj.spec or {}

-- ArgoCD asks no script about an object that is being deleted: it is "Progressing: Pending deletion".
local paused
for _, condition in ipairs(status.conditions or {}) do
  if condition.type == "Paused" and condition.status == "True" then
    paused = condition
  end
end
-- The operator sees no edit of such a job: its generation would be waited for in vain.
if paused ~= nil and paused.reason == "Everything" then
  return verdict("Suspended", paused.message)
end
-- Without this, the health would be that of the job before the change.
if status.observedGeneration == nil or status.observedGeneration ~= obj.metadata.generation then
  return verdict("Progressing", "Waiting for the operator to see the change")
end

local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

local function is(kind, value)
  local condition = conditions[kind]
  return condition ~= nil and condition.status == value
end

local function told(health, kind)
  local condition = conditions[kind]
  return verdict(health, condition.reason .. ": " .. condition.message)
end

-- What someone has to look at comes first, even while an older revision of the job keeps running.
if is("Valid", "False") then
  return told("Degraded", "Valid")
end
if is("StateCompatible", "False") then
  return told("Degraded", "StateCompatible")
end
if is("Degraded", "True") then
  return told("Degraded", "Degraded")
end
if status.phase == "Failed" then
  return verdict("Degraded", status.lastError or "The job has failed")
end

if spec.suspend == true then
  if status.phase == "Suspended" then
    return verdict("Suspended", "The job is suspended")
  end
  return verdict("Progressing", "The job is being suspended")
end
if status.phase == "Finished" then
  return verdict("Healthy", "All inputs have ended, and the job with them")
end
local waits = conditions["UpToDate"] ~= nil and conditions["UpToDate"].reason
-- Nothing happens until a person acts.
if waits == "RolloutsPaused" or waits == "AwaitingSwitch" then
  return told("Suspended", "UpToDate")
end
if is("Progressing", "True") then
  return told("Progressing", "Progressing")
end
if is("Ready", "True") then
  return told("Healthy", "Ready")
end
if conditions["Ready"] ~= nil then
  return told("Progressing", "Ready")
end
return verdict("Progressing", status.phase or "Waiting for the operator")
