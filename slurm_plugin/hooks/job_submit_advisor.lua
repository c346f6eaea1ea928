-- Recovery Advisor at submission: says what is wrong with a job's --comment, tags jobs that opt in or out, and, where
-- the site wants it, lets them avoid the nodes that the advisor has isolated.
--
-- Loaded by the block that `advisor slurm install-hooks` puts into job_submit.lua, which calls what this file returns:
--
--     wrap(slurm_job_submit, {tag = true, exclude_isolated = "none", isolated_file = "/run/..."})
--
-- The site's own function runs first, and its refusal stands. What goes wrong in here is logged and refuses no job:
-- slurmctld waits for us with its locks held, so everything is bounded, work included. Lua 5.1 to 5.4.

local COMMENT_BYTES_MAX = 16384
local DEPTH_MAX = 32
local RESTARTS_MAX = 10000
local FILE_BYTES_MAX = 65536
local NODES_MAX = 64
local FILE_AGE_SECONDS_MAX = 120
local INSTRUCTIONS_MAX = 3000000
local NO_VALUE = 4294967294 -- Slurm's NO_VAL: not given

local OPT_IN = '{"advisor": {"enabled": true}}'
local KNOWN_KEYS = "enabled, max_restarts, rules"
local NULL = {}

-- JSON, as much as is needed to judge it. Objects are {object = {key = value}}, arrays {array = {...}}, numbers
-- {number = text}; other values are Lua's own, null is NULL. Raises a table {at = position, text = sentence}.

local function fail(at, text)
  error({ at = at, text = text }, 0)
end

local ESCAPES = { ['"'] = '"', ["\\"] = "\\", ["/"] = "/", b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }

local function read_string(text, at)
  local parts, from = {}, at + 1
  while true do
    local stop = text:find('[%z\1-\31"\\]', from)
    if not stop then
      fail(at, "this text has no closing quote")
    end
    parts[#parts + 1] = text:sub(from, stop - 1)
    local char = text:sub(stop, stop)
    if char == '"' then
      return table.concat(parts), stop + 1
    elseif char ~= "\\" then
      fail(stop, "control characters must be written as escapes")
    end
    local escape = text:sub(stop + 1, stop + 1)
    local code = text:match("^u(%x%x%x%x)", stop + 1)
    if code then
      local number = tonumber(code, 16)
      parts[#parts + 1] = number < 128 and string.char(number) or ("\\u" .. code)
      from = stop + 6
    elseif ESCAPES[escape] then
      parts[#parts + 1] = ESCAPES[escape]
      from = stop + 2
    else
      fail(stop, "there is no such escape")
    end
  end
end

local function skip(text, at)
  return text:find("[^ \t\r\n]", at) or #text + 1
end

local read_value

local function read_object(text, at, depth)
  local found = {}
  at = skip(text, at + 1)
  if text:sub(at, at) == "}" then
    return { object = found }, at + 1
  end
  while true do
    if text:sub(at, at) ~= '"' then
      fail(at, "a key in double quotes is expected here")
    end
    local key
    key, at = read_string(text, at)
    at = skip(text, at)
    if text:sub(at, at) ~= ":" then
      fail(at, "a colon is expected here")
    end
    found[key], at = read_value(text, skip(text, at + 1), depth + 1)
    at = skip(text, at)
    local char = text:sub(at, at)
    if char == "}" then
      return { object = found }, at + 1
    elseif char ~= "," then
      fail(at, "a comma or a closing brace is expected here")
    end
    at = skip(text, at + 1)
  end
end

local function read_array(text, at, depth)
  local found = {}
  at = skip(text, at + 1)
  if text:sub(at, at) == "]" then
    return { array = found }, at + 1
  end
  while true do
    found[#found + 1], at = read_value(text, at, depth + 1)
    at = skip(text, at)
    local char = text:sub(at, at)
    if char == "]" then
      return { array = found }, at + 1
    elseif char ~= "," then
      fail(at, "a comma or a closing bracket is expected here")
    end
    at = skip(text, at + 1)
  end
end

local function read_number(text, at)
  local whole = text:match("^-?0", at) or text:match("^-?[1-9]%d*", at)
  if not whole then
    fail(at, "a value is expected here")
  end
  local stop = at + #whole
  local more = text:match("^%.%d+", stop) or ""
  stop = stop + #more
  stop = stop + #(text:match("^[eE][+-]?%d+", stop) or "")
  return { number = text:sub(at, stop - 1) }, stop
end

read_value = function(text, at, depth)
  if depth > DEPTH_MAX then
    fail(at, "nested deeper than " .. DEPTH_MAX .. " levels")
  end
  local char = text:sub(at, at)
  if char == "{" then
    return read_object(text, at, depth)
  elseif char == "[" then
    return read_array(text, at, depth)
  elseif char == '"' then
    return read_string(text, at)
  elseif text:sub(at, at + 3) == "true" then
    return true, at + 4
  elseif text:sub(at, at + 4) == "false" then
    return false, at + 5
  elseif text:sub(at, at + 3) == "null" then
    return NULL, at + 4
  end
  return read_number(text, at)
end

-- The keys of the JSON objects of a text, of a key that stands twice the first; as the agent reads them (scope.py):
-- keys or nil, and where something that begins as an object is none, the problem and the text from there on unread.
local function all_objects(text)
  local found, stop, at = nil, 1, text:find("{", 1, true)
  while at do
    local good, value, behind = pcall(read_value, text, at, 1)
    if not good and type(value) ~= "table" then
      error(value, 0)
    elseif not good then
      return found, ("character %d: %s"):format(value.at, value.text), text:sub(stop)
    end
    found, stop = found or {}, behind
    for key, item in pairs(value.object) do
      if found[key] == nil then
        found[key] = item
      end
    end
    at = text:find("{", stop, true)
  end
  return found, nil, ""
end

-- What the comment asks for: {wish = true | false | nil, refuse = sentence | nil, warn = sentence | nil}. A comment that
-- does not speak of us is nobody's business.

local function is_whole(value)
  local text = type(value) == "table" and value.number
  return text and text:find("^%d+$") and #text < 10 and tonumber(text) <= RESTARTS_MAX
end

local function can_be_rules(value)
  if type(value) == "string" then
    return value:sub(1, 1) == "/"
  end
  return type(value) ~= "boolean" and not (type(value) == "table" and value.number)
end

local function judge_advisor(value)
  if type(value) == "boolean" then
    return { wish = value }
  end
  local keys = type(value) == "table" and value.object
  if not keys then
    return { refuse = "advisor must be true, false or an object; an opt-in is " .. OPT_IN }
  end
  for key in pairs(keys) do
    if key ~= "enabled" and key ~= "max_restarts" and key ~= "rules" then
      local shown = key:gsub("[^%w_.-]", "?"):sub(1, 40)
      return { refuse = ("advisor.%s: no such key; known are %s"):format(shown, KNOWN_KEYS) }
    end
  end
  if keys.enabled ~= nil and type(keys.enabled) ~= "boolean" then
    return { refuse = "advisor.enabled must be true or false, without quotes" }
  elseif keys.max_restarts ~= nil and not is_whole(keys.max_restarts) then
    return { refuse = "advisor.max_restarts must be a whole number from 0 to " .. RESTARTS_MAX }
  elseif not can_be_rules(keys.rules) then
    return { refuse = "advisor.rules must be the absolute path of a file, or the rules themselves" }
  end
  return { wish = keys.enabled ~= false }
end

local function judge_aps(value)
  local keys = type(value) == "table" and value.object
  local mode = keys and keys.auto_resume_mode
  if not keys or (mode ~= nil and type(mode) ~= "string") then
    return { warn = 'APS is not understood and has no effect; expected is {"APS": {"auto_resume_mode": "requeue"}}' }
  end
  local times = keys.max_requeue_times
  if times ~= nil and not is_whole(times) then
    local text = "APS.max_requeue_times has no effect: it must be a whole number from 0 to " .. RESTARTS_MAX
    return { wish = mode == "requeue" or nil, warn = text }
  end
  return { wish = mode == "requeue" or nil }
end

local function speaks_of_us(comment)
  local lower = comment:lower()
  return lower:find("{%s*[\"']?advis[eo]r") or lower:find("[\"']advis[eo]r[\"']%s*:") or lower:find("[\"']aps[\"']%s*:")
end

local function judge(comment)
  if #comment > COMMENT_BYTES_MAX then
    if not speaks_of_us(comment) then
      return {}
    end
    return { refuse = ("%d bytes are more than the %d that are read"):format(#comment, COMMENT_BYTES_MAX) }
  end
  local keys, problem, unread = all_objects(comment)
  if problem and not (keys and keys.advisor ~= nil) and speaks_of_us(unread) then
    return { refuse = "not JSON at " .. problem .. "; an opt-in is " .. OPT_IN }
  elseif not keys then
    return {}
  end
  for key in pairs(keys) do
    local lower = key:lower()
    if key ~= "advisor" and (lower == "advisor" or lower == "adviser") then
      return { refuse = 'the key is "advisor", in small letters' }
    end
  end
  if keys.advisor ~= nil then
    return judge_advisor(keys.advisor)
  elseif keys.APS ~= nil then
    return judge_aps(keys.APS)
  end
  return {}
end

-- Isolated nodes. The agent writes {"v":1,"written":epoch,"nodes":[...],"alike":{node:{partition:count}}}; what is absent,
-- old or not that says nothing. Answers with the nodes, and with how many could stand in for each, per partition.

local function isolated_nodes(path, now)
  local file = io.open(path, "r")
  if not file then
    return {}, {}
  end
  local text = file:read(FILE_BYTES_MAX + 1) or ""
  file:close()
  if #text > FILE_BYTES_MAX or text:sub(1, 1) ~= "{" then
    return {}, {}
  end
  local keys = all_objects(text)
  local version, written, nodes = keys and keys.v, keys and keys.written, keys and keys.nodes
  if not is_whole(version) or version.number ~= "1" or type(written) ~= "table" or type(nodes) ~= "table" then
    return {}, {}
  end
  local age = written.number and tonumber(written.number) and now - tonumber(written.number)
  if not age or age < -FILE_AGE_SECONDS_MAX or age > FILE_AGE_SECONDS_MAX then
    return {}, {}
  end
  if not nodes.array or #nodes.array > NODES_MAX then
    return {}, {}
  end
  for _, node in ipairs(nodes.array) do
    if type(node) ~= "string" or not node:find("^[%w._-]+$") or #node > 255 then
      return {}, {}
    end
  end
  return nodes.array, type(keys.alike) == "table" and keys.alike.object or {}
end

local function covers(range, number)
  for part in range:gmatch("[^,]+") do
    local low, high = part:match("^(%d+)-(%d+)$")
    low, high = low or part, high or part
    local same_width = #number == #low or (low:sub(1, 1) ~= "0" and number:sub(1, 1) ~= "0")
    if low:find("^%d+$") and same_width and tonumber(number) >= tonumber(low) and tonumber(number) <= tonumber(high) then
      return true
    end
  end
  return false
end

-- Whether a hostlist names a node: true, false, or nil for a list that is not understood.
local function names(list, node)
  local found = false
  for item in (list:gsub("%b[]", function(inner) return (inner:gsub(",", ";")) end)):gmatch("[^,]+") do
    local prefix, range, rest = item:match("^([^%[%]]*)%[([%d;-]+)%]([^%[%]]*)$")
    if prefix then
      local number = node:sub(#prefix + 1, #node - #rest)
      local fits = node:sub(1, #prefix) == prefix and node:sub(#node - #rest + 1) == rest and number:find("^%d+$")
      found = found or (fits and covers((range:gsub(";", ",")), number)) or false
    elseif item:find("[%[%]]") then
      return nil
    else
      found = found or item == node
    end
  end
  return found
end

local function given(value)
  return value ~= nil and value ~= ""
end

local function partition_of(job, partitions)
  if given(job.partition) then
    return partitions[job.partition]
  end
  for _, partition in pairs(partitions) do
    if partition.flag_default == 1 or partition.flag_default == true then
      return partition
    end
  end
  return nil
end

-- Which of the isolated nodes this job can do without for certain; none where that cannot be told: Slurm refuses a job
-- at once when its exclusions make it impossible, and a node that it does not know.
local function to_exclude(job, partitions, isolated, alike)
  local partition = partition_of(job, partitions)
  local wanted = tonumber(job.min_nodes)
  if not partition or type(partition.nodes) ~= "string" or not tonumber(partition.total_nodes) then
    return {}
  elseif not wanted or wanted >= NO_VALUE or given(job.req_nodes) or given(job.features) or given(job.reservation) then
    return {}
  elseif given(job.exc_nodes) then
    return {} -- how many nodes are left then is not for us to work out
  elseif given(job.array_inx) then
    return {} -- its waiting tasks share one record, of which neither agent nor watchdog can give anything back
  end
  local chosen = {}
  for _, node in ipairs(isolated) do
    local known = names(partition.nodes, node)
    if known == nil then
      return {}
    elseif known then
      chosen[#chosen + 1] = node
    end
  end
  if tonumber(partition.total_nodes) - #chosen < wanted then
    return {}
  end
  -- Whatever it asks of a node: one that could run on a chosen one could run on all that could stand in for it.
  for _, node in ipairs(chosen) do
    local counts = type(alike[node]) == "table" and alike[node].object or {}
    local count = counts[partition.name]
    local number = type(count) == "table" and count.number and tonumber(count.number)
    if not number or number - #chosen < wanted then
      return {}
    end
  end
  return chosen
end

local function append(text, more)
  return given(text) and (text .. " " .. more) or more
end

-- The agent's mark for exclusions that are not about an attempt of this job: it and the watchdog can give them back.
local function mark(nodes)
  local list = '["' .. table.concat(nodes, '","') .. '"]'
  return ('{"advisor":{"v":1,"job":"","attempt":0,"generation":0,"deadline":null,"nodes":%s,"start":null,"found":null,'
    .. '"inherited":%s}}'):format(list, list)
end

local function look(job, partitions, options)
  local comment = job.comment
  local said = given(comment) and judge(comment) or {}
  if said.refuse then
    return said
  end
  if options.tag and said.wish ~= nil then
    job.admin_comment = append(job.admin_comment, said.wish and "advisor:opted-in" or "advisor:opted-out")
  end
  local which = options.exclude_isolated
  if (which == "all" and said.wish ~= false) or (which == "opted-in" and said.wish) then
    local nodes = to_exclude(job, partitions, isolated_nodes(options.isolated_file, os.time()))
    if #nodes > 0 then
      job.exc_nodes = table.concat(nodes, ",")
      job.admin_comment = append(job.admin_comment, mark(nodes))
    end
  end
  return said
end

local function bounded(work, ...)
  local sethook = debug and debug.sethook
  if sethook then
    sethook(function() error("more work than one submission may cost", 0) end, "", INSTRUCTIONS_MAX)
  end
  local good, result = pcall(work, ...)
  if sethook then
    sethook()
  end
  return good, result
end

local function wrap(site, options)
  if type(site) ~= "function" then
    return site -- Slurm says what it thinks of that
  end
  return function(job, partitions, user)
    local code = site(job, partitions, user)
    if code ~= nil and code ~= slurm.SUCCESS then
      return code
    end
    local good, said = bounded(look, job, partitions, options)
    if not good then
      slurm.log_error("recovery-advisor: %s", tostring(type(said) == "table" and said.text or said))
    elseif said.refuse then
      slurm.log_user("%s", "--comment: " .. said.refuse)
      return slurm.ERROR
    elseif said.warn then
      slurm.log_user("%s", "--comment: " .. said.warn)
    end
    return code
  end
end

return wrap
