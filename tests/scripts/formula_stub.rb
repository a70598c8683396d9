# What a formula uses of Homebrew, to read it and to run its blocks without Homebrew:
#   ruby formula_stub.rb FORMULA BIN FOLDER     prints what it declares as JSON, then runs its test with the programs in BIN
require "json"
require "pathname"
require "socket"

class String
  def /(other) = Pathname(self) / other
end

module Language
  module Python
    module Virtualenv; end
  end
end

class Service
  attr_reader :seen

  def initialize(formula)
    @formula = formula
    @seen = {}
  end

  def method_missing(name, *arguments, **options)
    return @formula.send(name, *arguments) if @formula.respond_to?(name) && arguments.empty? && options.empty?

    @seen[name] = options.empty? ? arguments.first : options
  end

  def respond_to_missing?(*) = true
  def std_service_path_env = "/opt/homebrew/bin:/usr/bin:/bin"
end

class Formula
  class << self
    attr_reader :declared, :service_block, :test_block

    def inherited(formula)
      formula.instance_variable_set(:@declared, { "depends_on" => [], "resources" => {} })
    end

    %w[desc homepage url sha256 license].each { |name| define_method(name) { |value| (@into || @declared)[name] = value } }

    def depends_on(what) = @declared["depends_on"] << (what.is_a?(Hash) ? what.keys.first : what)

    def resource(name)
      @into = @declared["resources"][name] = {}
      yield
      @into = nil
    end

    def service(&block) = @service_block = block
    def test(&block) = @test_block = block
  end

  attr_reader :bin, :testpath

  def initialize(bin, folder)
    @bin = Pathname(bin)
    @testpath = Pathname(folder)
  end

  def opt_bin = Pathname("/opt/homebrew/opt/pointsman/bin")
  def etc = Pathname("/opt/homebrew/etc")
  def var = Pathname("/opt/homebrew/var")
  def version = self.class.declared["url"][/-(\d[\d.]*)\.tar/, 1]
  def free_port = TCPServer.open("127.0.0.1", 0) { |server| server.addr[1] }
  def spawn(*words) = Process.spawn(*words.map(&:to_s))

  def shell_output(command)
    output = `#{command}`
    raise "#{command}: #{$?}\n#{output}" unless $?.success?

    output
  end

  def assert_equal(expected, found) = expected == found || raise("#{found} is not #{expected}")
  def assert_match(expected, found) = found.include?(expected) || raise("#{found} has no #{expected}")
end

path, bin, folder = ARGV
load path
formula = Pointsman.new(bin, folder)
service = Service.new(formula)
service.instance_eval(&Pointsman.service_block)
puts JSON.generate(Pointsman.declared.merge("service" => service.seen, "caveats" => formula.caveats))
$stdout.flush
$stdout.reopen($stderr)
formula.instance_eval(&Pointsman.test_block)
