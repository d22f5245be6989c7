-- What a script finds around itself: read-only globals, the API, libraries whose errors look as Valkey's do.
--
-- Natives throw objects that stand for errors (`native.thrown` tells which). Whatever shows errors to a script turns them
-- into what they stand for. `...` is what kind of scripts this is for, and the natives.

local kind, native = ...
local for_functions = kind == "function"

local error, type, tostring, tonumber, select = error, type, tostring, tonumber, select
local getmetatable, setmetatable = getmetatable, setmetatable
local pcall, xpcall, load = pcall, xpcall, load
local byte, find, sub, match = string.byte, string.find, string.sub, string.match
local pairs = pairs
local resume = coroutine.resume
local null = native.null

-- Read-only tables -------------------------------------------------------------------------------------------------

local set_readonly = native.set_readonly

local function frozen(table)
  return set_readonly(table, true)
end

local function missing(...)
  if select("#", ...) ~= 2 then
    error("Wrong number of arguments to luaProtectedTableError", 2)
  end
  local name = select(2, ...)
  local of = type(name)
  if of ~= "string" and of ~= "number" then
    error("Second argument to luaProtectedTableError must be a string or number", 2)
  end
  error("Script attempted to access nonexistent global variable '" .. name .. "'", 2)
end

-- Errors -----------------------------------------------------------------------------------------------------------

-- `level` counts from the function that calls these.
local function bad_argument(position, name, text, level)
  error("bad argument #" .. position .. " to '" .. name .. "' (" .. text .. ")", level + 1)
end

local function got(position, ...)
  if select("#", ...) < position then
    return "no value"
  end
  return type((select(position, ...)))
end

-- What stops a script is no error that it may catch. Nothing else is userdata, but for the null of cjson.
local function stops(err)
  return type(err) == "userdata" and err ~= null
end

-- The error that a script sees; nothing can be seen of what stops it. Lua may have replaced that by an error of its own:
-- near the limits of the stacks, the handler of xpcall gets "stack overflow" instead. So the run is checked again here,
-- less deep in the stacks.
local thrown = native.thrown
local check_run = native.check_run
local function shown_error(err)
  check_run()
  if stops(err) then
    err = thrown(err)
    if stops(err) then
      error(err, 0)
    end
  end
  return err
end

-- An error as pcall of commands returns it: its text begins with a code.
local function error_table(text)
  text = match(text, "^%Z*")
  local code, message = "ERR", text
  if byte(text) == 45 then
    local space = find(text, " ", 1, true)
    if space then
      code, message = sub(text, 2, space - 1), sub(text, space + 1)
    else
      message = sub(text, 2)
    end
  end
  message = match(message, "^[\r\n]*(.-)[\r\n]*$")
  return {err = code .. " " .. message}
end

local function without_own_place(text)
  return match(text, "^weft:%d+: (.*)$") or text
end

-- Globals ----------------------------------------------------------------------------------------------------------

local globals = {}

local function end_protected(ok, ...)
  if ok then
    return true, ...
  end
  return false, shown_error((...))
end

local function end_pcall(ok, ...)
  if ok then
    return true, ...
  end
  local err = shown_error((...))
  if type(err) == "table" then
    local text = err.err
    if type(text) == "string" or type(text) == "number" then
      return false, text
    end
  end
  return false, err
end

function globals.pcall(...)
  if select("#", ...) == 0 then
    return
  end
  return end_pcall(pcall(...))
end

function globals.xpcall(...)
  if select("#", ...) < 2 then
    bad_argument(2, "xpcall", "value expected", 2)
  end
  local body, handle = ...
  return end_protected(xpcall(body, function(err)
    if stops(err) then
      err = thrown(err)
      if stops(err) then
        return err
      end
    end
    return handle(err)
  end))
end

local shown_globals

-- What the readers of `load` throw is returned as a message.
function globals.load(...)
  local reader, name = ...
  if type(reader) ~= "function" then
    bad_argument(1, "load", "function expected, got " .. got(1, ...), 2)
  end
  local chunk, message = load(reader, name)
  if chunk then
    return chunk
  end
  message = shown_error(message)
  -- An error of the reader itself names a line of this file.
  return nil, type(message) == "string" and without_own_place(message) or message
end

-- Functions that reach into others, for scripts that may have them (`lua-enable-insecure-api`). What is around natives and
-- around this file is shown as what is around scripts.
if native.insecure then
  local getfenv, setfenv, own = getfenv, setfenv, getfenv(1)
  globals.newproxy = newproxy

  -- Which function is asked for, and what is around it; what is around one that has ended with a tail call is not known.
  local function checked(name, ...)
    local of = ...
    if of == nil then
      of = 1
    end
    if type(of) ~= "function" then
      of = tonumber(of)
      if not of then
        bad_argument(1, name, "number expected, got " .. got(1, ...), 3)
      end
      if of < 0 then
        bad_argument(1, name, "level must be non-negative", 3)
      end
    end
    -- Levels count from the caller of the caller.
    local found, around = pcall(getfenv, type(of) == "number" and of > 0 and of + 3 or of)
    if not found then
      if not find(around, "tail call", 1, true) then
        bad_argument(1, name, "invalid level", 3)
      end
      return 0, own
    end
    return of, around
  end

  function globals.getfenv(...)
    local of, around = checked("getfenv", ...)
    if of == 0 or around == own then
      return shown_globals
    end
    return around
  end

  function globals.setfenv(...)
    local of, around = checked("setfenv", ...)
    local wanted = select(2, ...)
    if type(wanted) ~= "table" then
      bad_argument(2, "setfenv", "table expected, got " .. got(2, ...), 2)
    end
    if of == 0 then
      return
    end
    local changed, result = around ~= own, nil
    if changed then
      changed, result = pcall(setfenv, type(of) == "number" and of + 2 or of, wanted)
    end
    if not changed then
      error("'setfenv' cannot change environment of given object", 2)
    end
    return result
  end
end

for _, name in pairs({
  "assert", "collectgarbage", "error", "gcinfo", "getmetatable", "ipairs", "loadstring", "next", "pairs", "rawequal",
  "rawget", "rawset", "select", "setmetatable", "tonumber", "tostring", "type", "unpack", "_VERSION",
}) do
  globals[name] = _G[name]
end

-- Libraries --------------------------------------------------------------------------------------------------------

local function copy(library)
  local result = {}
  for name, value in pairs(library) do
    result[name] = value
  end
  return result
end

local coroutine_library = copy(coroutine)

function coroutine_library.resume(...)
  if type((...)) ~= "thread" then
    bad_argument(1, "resume", "coroutine expected", 2)
  end
  return end_protected(resume(...))
end

local math_library = copy(math)

math_library.random = native.random
math_library.randomseed = native.randomseed

globals.string = frozen(string)
frozen(getmetatable(""))
globals.table = frozen(table)
globals.coroutine = frozen(coroutine_library)
globals.math = frozen(math_library)
globals.os = frozen({clock = os.clock})
globals.cjson = frozen(native.cjson)
globals.cmsgpack = frozen(native.cmsgpack)
globals.struct = frozen(native.struct)
globals.bit = frozen(native.bit)

-- The server's API -------------------------------------------------------------------------------------------------

local api = copy(native.constants)

-- Both are C functions. A tail call of a Lua function would replace the frame of its caller, and errors could no longer
-- name the caller's line.
api.call = native.call

local try_host, failure = native.try_call, native.failure

-- The reply of a call, or the error that the script sees instead.
local function end_call(ok, ...)
  if ok then
    return ...
  end
  return shown_error((...))
end

api.pcall = native.command_function(function()
  return shown_error(failure())
end, function(...)
  return end_call(try_host(...))
end)

function api.error_reply(...)
  local text = ...
  if select("#", ...) ~= 1 or type(text) ~= "string" then
    return error_table("wrong number or type of arguments")
  end
  if byte(text) ~= 45 then
    text = "-" .. text
  end
  return error_table(text)
end

function api.status_reply(...)
  local text = ...
  if select("#", ...) ~= 1 or type(text) ~= "string" then
    return error_table("wrong number or type of arguments")
  end
  return {ok = text}
end

-- A debugger shows the errors that a script makes up.
if native.note_error then
  local error_reply = api.error_reply

  function api.error_reply(...)
    if select("#", ...) == 1 and type((...)) == "string" then
      native.note_error((...))
    end
    return error_reply(...)
  end
end

api.acl_check_cmd = native.acl_check_cmd
api.sha1hex = native.sha1hex
api.setresp = native.setresp
api.set_repl = native.set_repl
api.log = native.log

if not for_functions then
  -- Only a debugger gives these.
  api.breakpoint = native.breakpoint or function()
    return false
  end
  api.debug = native.debug or function() end

  function api.replicate_commands()
    return true
  end
end

globals.redis = frozen(api)
globals.server = globals.redis

-- Running ----------------------------------------------------------------------------------------------------------

local function set_place(err, source, line)
  err["source"] = source
  err["line"] = line
end

-- Adds to an error where it happened. The table that a script throws may be read-only, or refuse the change.
local function note_place(err)
  if stops(err) then
    err = thrown(err)
    if stops(err) then
      return err
    end
  end
  if type(err) ~= "table" then
    err = {err = "ERR " .. tostring(err)}
  end
  local source, line = native.where()
  if source then
    local ok, failure = pcall(set_place, err, source, line)
    if not ok then
      if stops(failure) then
        return failure
      end
      err = {err = "ERR " .. without_own_place(tostring(failure)), source = source, line = line}
    end
  end
  return err
end

if not for_functions then
  globals.__redis__err__handler = note_place
  globals.__server__err__handler = note_place
  globals.KEYS = {}
  globals.ARGV = {}
end

local missing_metatable = frozen({__index = missing})
setmetatable(globals, missing_metatable)
-- While a library is loaded, other globals are behind the table that its functions keep.
local functions_metatable
if for_functions then
  functions_metatable = {__index = globals}
  shown_globals = setmetatable({}, frozen(functions_metatable))
else
  shown_globals = globals
end
globals._G = globals
frozen(globals)
frozen(shown_globals)

local program = {globals = shown_globals}

-- Runs what the user of a debugger wants.
function program.attempt(code)
  local ok, result = pcall(code)
  if not ok and stops(result) then
    result = thrown(result)
  end
  return ok, result
end

program.note_place = note_place
program.variables = globals

-- Runs the code of a library, which finds nothing but what it needs to register functions. `register` gets a name, a
-- function, and what else was told about it; it returns what is wrong, if anything is. `end_load` must be called next.
function program.load(library, register)
  local loading = copy(native.constants)
  for name in pairs(loading) do
    if sub(name, 1, 5) == "REPL_" then
      loading[name] = nil
    end
  end
  loading.log = native.log

  local function refuse_registration(text)
    error(error_table(text), 0)
  end

  local function read_flags(list)
    local flags = {}
    local position = 1
    while true do
      local flag = list[position]
      if flag == nil then
        return flags
      end
      if type(flag) ~= "string" and type(flag) ~= "number" then
        refuse_registration("unknown flag given")
      end
      flags[position] = tostring(flag)
      position = position + 1
    end
  end

  local function is_text(value)
    return type(value) == "string" or type(value) == "number"
  end

  local function read_named(arguments)
    if type(arguments) ~= "table" then
      refuse_registration("calling server.register_function with a single argument is only applicable to Lua table "
        .. "(representing named arguments).")
    end
    local name, description, callback, flags
    for key, value in pairs(arguments) do
      if not is_text(key) then
        refuse_registration("named argument key given to server.register_function is not a string")
      end
      local argument = tostring(key):lower()
      if argument == "function_name" then
        if not is_text(value) then
          refuse_registration("function_name argument given to server.register_function must be a string")
        end
        name = tostring(value)
      elseif argument == "description" then
        if not is_text(value) then
          refuse_registration("description argument given to server.register_function must be a string")
        end
        description = tostring(value)
      elseif argument == "callback" then
        if type(value) ~= "function" then
          refuse_registration("callback argument given to server.register_function must be a function")
        end
        callback = value
      elseif argument == "flags" then
        if type(value) ~= "table" then
          refuse_registration("flags argument to server.register_function must be a table representing function flags")
        end
        flags = read_flags(value)
      else
        refuse_registration("unknown argument given to server.register_function")
      end
    end
    if not name then
      refuse_registration("server.register_function must get a function name argument")
    end
    if not callback then
      refuse_registration("server.register_function must get a callback argument")
    end
    return name, callback, description, flags
  end

  local finished = false

  function loading.register_function(...)
    if finished then
      refuse_registration("server.register_function can only be called on FUNCTION LOAD command")
    end
    local count = select("#", ...)
    if count < 1 or count > 2 then
      refuse_registration("wrong number of arguments to server.register_function")
    end
    local name, callback, description, flags
    if count == 1 then
      name, callback, description, flags = read_named((...))
    else
      name, callback = ...
      if not is_text(name) then
        refuse_registration("first argument to server.register_function must be a string")
      end
      name = tostring(name)
      if type(callback) ~= "function" then
        refuse_registration("second argument to server.register_function must be a function")
      end
    end
    local wrong = register(name, callback, description, flags or {})
    if wrong then
      refuse_registration(wrong)
    end
  end

  setmetatable(loading, missing_metatable)
  frozen(loading)
  local surroundings = setmetatable({redis = loading, server = loading}, missing_metatable)
  set_readonly(functions_metatable, false)
  functions_metatable.__index = surroundings
  local ok, err = pcall(library)
  finished = true
  if ok then
    return true
  end
  if stops(err) then
    err = thrown(err)
    if stops(err) then
      return false, err
    end
  end
  if type(err) == "table" then
    local text = err.err
    return false, is_text(text) and tostring(text) or nil
  end
  return false, "ERR " .. tostring(err)
end

-- Gives functions their globals back. `load` cannot do so itself: a check of the run may end it at any instruction.
function program.end_load()
  set_readonly(functions_metatable, false)
  functions_metatable.__index = globals
  frozen(functions_metatable)
end

return program
